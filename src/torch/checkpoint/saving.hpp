#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <autopar/runtime/world.hpp>
#include <autopar/torch/checkpoint_format.hpp>
#include <autopar/torch/saved_parts.hpp>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/checkpoint_items.hpp"
#include "torch/checkpoint/metadata.hpp"
#include "torch/checkpoint/pieces.hpp"
#include "torch/checkpoint/rank_files.hpp"

namespace autopar::checkpoint {

/// A save in steps that all ranks take together, each collective. What may fail throws CheckpointError on every rank.
class Saving {
 public:
  /// @param tensors  outlive this
  Saving(World& world, CheckpointFormat format, std::filesystem::path folder,
         const std::vector<ShardedTensorMetadata>& tensors, const std::vector<torch::optim::Optimizer*>& optimizers,
         const CheckpointInfo& info, const std::map<std::string, KeptValue>& kept);

  /// Agrees on who writes what, before any byte is written.
  /// @param lock  makes the folder and locks it, on rank 0; throws if another job saves there
  /// @throws CheckpointError if ranks have other items, a rank does not see the folder, the disk has no room, or a file
  /// of others would be replaced
  void agree(const std::function<void()>& lock);
  /// Likewise, if each rank writes where it is alone to look: no folder is locked, read or compared.
  /// @pre the format is sharded
  void agree_on_parts();
  [[nodiscard]] const SavePlan& plan() const { return plan_; }
  [[nodiscard]] const std::string& subject() const { return subject_; }

  /// Hands each of this rank's pieces to `take`, in order: on its device, perhaps not contiguous. Valid for the call.
  void for_each_piece(const std::function<void(const at::Tensor&)>& take);
  /// Writes this rank's files, one piece at a time. @return what they are
  std::vector<CheckpointFile> write();
  /// Writes them, and tells all ranks of those of all. @pre `agree_on_parts`
  [[nodiscard]] SavedParts write_parts();
  /// Makes the checkpoint visible. @pre all ranks have written their files
  void publish();

 private:
  [[nodiscard]] SavedInfo described() const;
  /// Finds out who writes what. Collective.
  void divide(const SavedInfo& saved, std::int64_t generation);
  void require_common_folder();

  World& world_;
  std::filesystem::path folder_;
  std::string subject_;
  CheckpointFormat format_;
  std::vector<CheckpointItem> items_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  CheckpointInfo info_;
  std::map<std::string, KeptValue> kept_;
  std::vector<Piece> pieces_;
  SavePlan plan_;
};

}  // namespace autopar::checkpoint
