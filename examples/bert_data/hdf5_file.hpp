#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace bert_data {

/// A handle of HDF5's, closed at the end.
class Hdf5Handle {
 public:
  using Close = int (*)(std::int64_t);
  Hdf5Handle(std::int64_t id, Close close) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&&) = delete;
  ~Hdf5Handle();
  [[nodiscard]] std::int64_t get() const { return id_; }

 private:
  std::int64_t id_;
  Close close_;
};

/// Integers in an HDF5 file, compressed or not. Errors are std::runtime_error, with the names of file and dataset and
/// what HDF5 said. Debian's HDF5 is of one thread at a time: files of several threads wait for one another.
class Hdf5File {
 public:
  static Hdf5File open(const std::filesystem::path& path);
  /// Made aside; `commit` gives it its name.
  static Hdf5File create(const std::filesystem::path& path);
  Hdf5File(Hdf5File&&) noexcept = default;
  Hdf5File& operator=(Hdf5File&&) = delete;

  /// Sizes of a dataset of integers. @throws also where it is none of integers
  [[nodiscard]] std::vector<std::int64_t> shape(const std::string& dataset) const;
  /// All of it, row by row. What does not fit becomes the largest or smallest number that does.
  [[nodiscard]] std::vector<std::int32_t> read(const std::string& dataset) const;

  enum class Type { kInt8, kInt32 };
  /// As 8 or 32 bits, compressed with gzip.
  void write(const std::string& dataset, Type type, const std::vector<std::int64_t>& shape,
             const std::vector<std::int32_t>& values);
  void commit();

 private:
  Hdf5File(std::filesystem::path path, std::filesystem::path written, Hdf5Handle file)
      : path_(std::move(path)), written_(std::move(written)), file_(std::move(file)) {}
  [[nodiscard]] Hdf5Handle opened(const std::string& dataset) const;
  [[noreturn]] void fail(const std::string& dataset, const std::string& what) const;

  std::filesystem::path path_, written_;
  Hdf5Handle file_;
};

}  // namespace bert_data
