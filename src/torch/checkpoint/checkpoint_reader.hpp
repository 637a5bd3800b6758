#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/runtime/world.hpp>

#include "torch/checkpoint/agreement.hpp"
#include "torch/checkpoint/checkpoint_items.hpp"
#include "torch/checkpoint/stored_checkpoint.hpp"

namespace autopar::checkpoint {

/// Brings items of a checkpoint from disk to their holders. A sharded checkpoint that all ranks see is read by each
/// rank; anything else by rank 0, which sends the others their parts.
class CheckpointReader {
 public:
  /// Opens the checkpoint on rank 0 and, if the folder is not in use, removes orphans. Does not communicate.
  /// @throws CheckpointError, on rank 0, if there is no checkpoint or it is damaged
  CheckpointReader(World& world, const std::filesystem::path& path);
  /// Opens a sharded checkpoint on the other ranks, too, if all see it. Collective.
  void share();

  /// The contents. @pre on rank 0
  [[nodiscard]] const StoredCheckpoint& stored() const { return *stored_; }

  /// Reads whole items to find damage, and discards them. Of a shared checkpoint each rank reads some. Does not
  /// communicate.
  /// @param items  numbers for which `name` is not empty, in the order of the data; the same on all ranks
  /// @throws CheckpointError with the item's name, if it is damaged
  void verify(std::size_t number, const CheckpointItem& item, const std::string& name);

  /// Allocates memory for the largest item, before the first is read; no items free it. Does not communicate.
  void reserve(const std::vector<CheckpointItem>& items);
  /// Reads this rank's part of an item. Collective. A rank that cannot read continues, and reports it in `finish`.
  /// @param name  of the tensor in the checkpoint
  /// @param mine  flat or with the item's sizes, on the CPU; undefined on ranks that hold nothing of it
  void read(const CheckpointItem& item, const std::string& name, const at::Tensor& mine);
  /// Ends reading. Does not communicate.
  /// @throws CheckpointError if this rank could not read, or data were damaged
  void finish() { error_.require_none(); }

 private:
  [[nodiscard]] at::Tensor whole_of_item(const CheckpointItem& item);
  void read_mine(const CheckpointItem& item, const std::string& name, const at::Tensor& mine);
  void hand_out(const CheckpointItem& item, const at::Tensor& part, Rank holder, const at::Tensor& mine);

  World& world_;
  std::filesystem::path path_;
  std::optional<StoredCheckpoint> stored_;  ///< on ranks that read
  bool is_shared_ = false;
  at::Tensor memory_;  ///< bytes: one item at a time
  FirstError error_;
};

}  // namespace autopar::checkpoint
