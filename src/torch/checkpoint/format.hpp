#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/io/safetensors.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/torch/checkpoint_format.hpp>

#include "torch/checkpoint/checkpoint_items.hpp"

namespace autopar::checkpoint {

/// Writes the items of a checkpoint to disk. Every rank has a writer and passes it the same items in the same order.
/// The format decides what ranks send to each other.
class CheckpointWriter {
 public:
  virtual ~CheckpointWriter() = default;
  /// Writes an item. Collective. A rank that cannot write continues, so that all ranks stay in step, and reports it in
  /// `commit`.
  virtual void write(const CheckpointItem& item) = 0;
  /// Makes the complete checkpoint visible. Does not communicate.
  /// @throws CheckpointError if this rank could not write
  virtual void commit() = 0;
};

/// Reads the items of a checkpoint from disk.
class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;

  // ---- on rank 0: the contents

  [[nodiscard]] virtual const std::map<std::string, std::string>& metadata() const = 0;
  [[nodiscard]] virtual bool has_checksums() const = 0;
  [[nodiscard]] virtual const std::vector<TensorEntry>& entries() const = 0;
  /// Null if there is no tensor with this name.
  [[nodiscard]] virtual const TensorEntry* find(const std::string& name) const = 0;

  /// Reads a whole item to find damage, and discards it.
  /// @throws CheckpointError with the item's name, if it is damaged
  virtual void verify(const CheckpointItem& /*item*/, const std::string& /*name*/) {}

  // ---- on every rank

  /// Allocates memory for the largest item, before the first is read; 0 frees it. Does not communicate.
  virtual void reserve(std::size_t bytes) = 0;
  /// Reads this rank's part of an item. Collective. A rank that cannot read continues, and reports it in `finish`.
  /// @param name  of the tensor on disk; on rank 0
  /// @param mine  flat or with the item's sizes, on the CPU; undefined on ranks that hold nothing of it
  virtual void read(const CheckpointItem& item, const std::string& name, const at::Tensor& mine) = 0;
  /// Ends reading. Does not communicate.
  /// @throws CheckpointError if this rank could not read, or data were damaged
  virtual void finish() = 0;
};

/// The file format of a checkpoint. `save_checkpoint` and `load_checkpoint` decide what a checkpoint contains and that
/// all ranks agree on it; they do not access files.
///
/// To add a format, write a class with these four members, its reader and its writer, as in `single_file.cpp`.
class Format {
 public:
  virtual ~Format() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// The file with the metadata of a checkpoint in this folder, for messages.
  [[nodiscard]] virtual std::filesystem::path file(const std::filesystem::path& folder) const = 0;
  /// Begins a checkpoint and removes files that killed saves left. Does not communicate. A rank that cannot write
  /// reports it in `CheckpointWriter::commit`.
  /// @param entries  of all items, in the order in which they will be written
  [[nodiscard]] virtual std::unique_ptr<CheckpointWriter> writer(
      World& world, const std::filesystem::path& folder, const std::vector<TensorEntry>& entries,
      const std::map<std::string, std::string>& metadata) const = 0;
  /// Opens a checkpoint. Does not communicate.
  /// @throws CheckpointError, on ranks that read files, if there is no checkpoint or it is damaged
  [[nodiscard]] virtual std::unique_ptr<CheckpointReader> reader(World& world,
                                                                 const std::filesystem::path& folder) const = 0;
};

}  // namespace autopar::checkpoint
