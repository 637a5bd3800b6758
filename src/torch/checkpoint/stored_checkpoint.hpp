#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/io/checkpoint_index.hpp>
#include <autopar/io/safetensors.hpp>

#include "torch/checkpoint/checkpoint_folder.hpp"
#include "torch/parameters/shard_slices.hpp"

namespace autopar::checkpoint {

/// A checkpoint on disk, open for reading: a folder with an index, a file of an earlier version, or another program's
/// safetensors file. It stays readable while the object lives, even if a save replaces it. Does not communicate.
class StoredCheckpoint {
 public:
  /// @param path  a folder, or a safetensors file
  /// @throws CheckpointError if there is none or it is damaged
  explicit StoredCheckpoint(const std::filesystem::path& path);

  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return index_.metadata; }
  [[nodiscard]] bool has_checksums() const;
  /// Distinguishes checkpoints: equal on all ranks that see the same. Empty without an index.
  [[nodiscard]] const std::string& identity() const { return identity_; }
  /// Whether several ranks wrote it.
  [[nodiscard]] bool is_sharded() const { return is_sharded_; }

  /// Named as CheckpointItem::entry, or as the file of another program does; in the order of their data.
  [[nodiscard]] const std::vector<TensorEntry>& entries() const { return entries_; }
  /// Null if there is no tensor with this name.
  [[nodiscard]] const TensorEntry* find(const std::string& name) const;

  /// Reads all elements and verifies their checksums.
  /// @param whole  of these sizes and this type
  void read(const std::string& name, const at::Tensor& whole) const;
  /// Reads some elements, and verifies the checksums of all parts that have some.
  /// @param own    as many elements, without gaps
  /// @param whole  memory for the tensor, whose contents are lost; may be undefined if some part has the same slices
  void read(const std::string& name, const parameters::ShardSlices& slices, const at::Tensor& own,
            const at::Tensor& whole) const;

 private:
  struct Place {
    std::size_t entry = 0;
    std::string name;  ///< in the data files
    const std::vector<CheckpointPart>* parts = nullptr;
  };
  void open_folder(const std::filesystem::path& folder, CheckpointIndex index);
  void open_file(const std::filesystem::path& file);
  void add(const std::string& name, const std::string& name_in_files, const CheckpointTensor& tensor);
  void read_part(const Place& place, const CheckpointPart& part, const at::Tensor& own) const;

  CheckpointIndex index_;
  std::string identity_;
  bool is_sharded_ = false;
  std::vector<SafetensorsReader> files_;
  std::vector<TensorEntry> entries_;
  std::unordered_map<std::string, Place> places_;
};

}  // namespace autopar::checkpoint
