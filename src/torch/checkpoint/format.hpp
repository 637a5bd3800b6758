#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/io/safetensors.hpp>
#include <autopar/runtime/world.hpp>

#include "torch/checkpoint/rows.hpp"

namespace autopar::checkpoint {

/// Puts the rows of a checkpoint on disk. Every rank has one and tells it the same rows in the same order; what these
/// send one another is the format's own.
class CheckpointWriter {
 public:
  virtual ~CheckpointWriter() = default;
  /// Collective. A rank that cannot write goes on, so that all stay in step, and says so in `commit`.
  virtual void write(const Row& row) = 0;
  /// Lets the checkpoint appear, as a whole. Does not communicate. @throws CheckpointError if this rank could not write
  virtual void commit() = 0;
};

/// Takes the rows of a checkpoint from disk.
class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;

  // ---- on rank 0: what is there

  [[nodiscard]] virtual const std::map<std::string, std::string>& metadata() const = 0;
  [[nodiscard]] virtual bool has_checksums() const = 0;
  [[nodiscard]] virtual const std::vector<TensorEntry>& entries() const = 0;
  /// Nothing if there is none of that name.
  [[nodiscard]] virtual const TensorEntry* find(const std::string& name) const = 0;

  /// Reads a row to its end and keeps nothing of it, to find damage. @throws CheckpointError naming it
  virtual void verify(const Row& /*row*/, const std::string& /*name*/) {}

  // ---- on every rank

  /// Memory for the largest row, before the first is read; 0 frees it. Does not communicate.
  virtual void reserve(std::size_t bytes) = 0;
  /// Fills what this rank holds of a row. Collective. A rank that cannot read goes on, and says so in `finish`.
  /// @param name  of the tensor on disk; on rank 0
  /// @param mine  flat or of the row's sizes, on the CPU; undefined on ranks that hold nothing of it
  virtual void read(const Row& row, const std::string& name, const at::Tensor& mine) = 0;
  /// Does not communicate. @throws CheckpointError if this rank could not read, or met damaged data
  virtual void finish() = 0;
};

/// How a checkpoint lies on disk. What it holds, and that all ranks agree on it, is the matter of `save_checkpoint` and
/// `load_checkpoint`, which know no file.
///
/// To add one: a class with these three members, and its reader and writer; `single_file.cpp` is one.
class CheckpointFormat {
 public:
  virtual ~CheckpointFormat() = default;
  /// Of a checkpoint in this folder: the file that has its metadata, for messages.
  [[nodiscard]] virtual std::filesystem::path file(const std::filesystem::path& folder) const = 0;
  /// What earlier saves that were killed left behind is removed. Does not communicate; a rank that cannot write says so
  /// in `CheckpointWriter::commit`.
  /// @param entries  of all rows that come, in their order
  [[nodiscard]] virtual std::unique_ptr<CheckpointWriter> writer(
      World& world, const std::filesystem::path& folder, const std::vector<TensorEntry>& entries,
      const std::map<std::string, std::string>& metadata) const = 0;
  /// Does not communicate. @throws CheckpointError on ranks that read files: there is none, or it is damaged
  [[nodiscard]] virtual std::unique_ptr<CheckpointReader> reader(World& world,
                                                                 const std::filesystem::path& folder) const = 0;
};

/// All rows in one safetensors file, which rank 0 writes and reads, one row at a time.
[[nodiscard]] const CheckpointFormat& single_file();

}  // namespace autopar::checkpoint
