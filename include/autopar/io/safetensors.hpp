#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <autopar/core/dtype.hpp>
#include <autopar/core/units.hpp>

namespace autopar {

/// Name, element type and sizes of a tensor in a file. Data are dense, row-major, little-endian.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;

  [[nodiscard]] Bytes bytes() const;
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

/// Writes one safetensors file tensor after tensor, so only one of them is in memory.
///
/// The final name appears at `commit`, which syncs file and folder; a writer destroyed before removes what it wrote.
/// Python's `safetensors` reads the files. Some readers need data aligned to the size of their elements: pass entries
/// by descending element size. The metadata have a checksum of each tensor and one of the header, under keys that begin
/// with `autopar.xxh3`.
/// @source https://github.com/huggingface/safetensors (format: u64 header length, JSON header, data)
class SafetensorsWriter {
 public:
  /// @throws CheckpointError if the file cannot be made, or a name occurs twice, is reserved or is not UTF-8
  /// @throws CheckpointError if the header exceeds the format's limit (100 MiB)
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorEntry> entries,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;

  /// Writes the bytes of the next entry, in the order of the constructor.
  /// @throws CheckpointError on a wrong size or a full disk
  void write(std::span<const std::byte> data);
  /// @throws CheckpointError if an entry is missing or the file cannot be made durable
  void commit();

  /// XXH3 of the header's text on disk, and the size of the whole file, as a reader has them: they name exactly this
  /// file.
  /// @throws InvalidArgument before `commit`
  [[nodiscard]] std::uint64_t header_checksum() const;
  [[nodiscard]] Bytes size() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Reads the tensors of a safetensors file in any order. The header is fully checked. A truncated, damaged, malicious
/// or invalid file (data that overlap or leave holes, a duplicate key, a byte-order mark) is refused with the reason.
/// Memory is at most a few times the header's real size. Checksums are verified if the file has them, as files of
/// SafetensorsWriter do.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(std::filesystem::path path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  /// In the order of their data.
  [[nodiscard]] const std::vector<TensorEntry>& entries() const;
  /// Without the checksums.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;
  [[nodiscard]] bool has_checksums() const;
  /// XXH3 of the header's text on disk, also of other writers' files. If it is right and has_checksums(), so are data
  /// that `read` returns.
  [[nodiscard]] std::uint64_t header_checksum() const;
  /// Of the whole file.
  [[nodiscard]] Bytes size() const;
  /// nullptr if there is no tensor with this name.
  [[nodiscard]] const TensorEntry* find(const std::string& name) const;
  /// Reads bytes [offset, offset + out.size()) of a tensor. Its checksum is verified only if these are all bytes.
  /// @throws CheckpointError on an unknown name, a range outside the tensor, a read error or damaged data
  void read(const std::string& name, std::span<std::byte> out, Bytes offset = Bytes(0)) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace autopar
