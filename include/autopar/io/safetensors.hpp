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

/// Writes one safetensors file, tensor after tensor, so that memory holds one of them at a time.
///
/// Nothing is visible under the final name until `commit`, which syncs and renames; a writer destroyed before that
/// removes what it wrote. Python's `safetensors` reads the files; some of its readers want data at multiples of their
/// elements' size, which those are that come in descending order of that. The metadata hold a checksum of each tensor
/// and one of the header, under keys that begin with `autopar.xxh3`.
/// @source https://github.com/huggingface/safetensors (format: u64 header length, JSON header, data)
class SafetensorsWriter {
 public:
  /// @throws CheckpointError when the file cannot be made, a name occurs twice, is reserved or not UTF-8, or the header
  /// gets
  ///         longer than the format allows (100 MiB)
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorEntry> entries,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;

  /// Bytes of the next entry, in the order of the constructor. @throws CheckpointError on a wrong size or a full disk
  void write(std::span<const std::byte> data);
  /// @throws CheckpointError if an entry is missing
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Reads a safetensors file, any tensor at any time. The header is checked in full: a file that is truncated, damaged,
/// hostile or against a rule of the format (data that overlap or leave holes, a key twice, a byte-order mark) is
/// refused with the reason, and never costs more memory than a few times its header's real size. Checksums are verified
/// where the file has them, as those of SafetensorsWriter do.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(std::filesystem::path path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  /// In the order of their data.
  [[nodiscard]] const std::vector<TensorEntry>& entries() const;
  /// Without checksums.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;
  [[nodiscard]] bool has_checksums() const;
  /// nullptr if there is none of that name.
  [[nodiscard]] const TensorEntry* find(const std::string& name) const;
  /// Bytes [offset, offset + out.size()) of a tensor; only when these are all is its checksum verified.
  /// @throws CheckpointError on an unknown name, a range outside it, a read error or damaged data
  void read(const std::string& name, std::span<std::byte> out, Bytes offset = Bytes(0)) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace autopar
