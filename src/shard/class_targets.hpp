#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <autopar/core/split.hpp>
#include <autopar/shard/cross_entropy.hpp>
#include <autopar/shard/group.hpp>

#include "shard/softmax_block.hpp"

namespace autopar::detail {

/// A cross-entropy over classes that a group shares.
struct ClassShards {
  Group group;
  Split split{{0}};
  RowLoss loss;
  std::int64_t ignore_index = -100;
  bool check_targets = true;

  /// @throws InvalidArgument for options out of range, a weight of another size
  ClassShards(const ParallelCrossEntropyOptions& options, Group group, Split split, const at::Tensor& like);

  [[nodiscard]] std::int64_t first() const { return split.begin(group.place()); }
  [[nodiscard]] std::int64_t length() const { return split.length(group.place()); }
};

/// [N] indices in classes.
[[nodiscard]] Targets targets_of(const at::Tensor& index, const ClassShards& shards);

/// The statistics of all ranks' classes from those of this rank's. One all-gather.
/// @throws InvalidArgument on all ranks if a target on any is out of range, or ranks have different ones
[[nodiscard]] at::Tensor over_group(const at::Tensor& statistics, const Targets& targets, const ClassShards& shards);

/// The rows' losses, NaN where the target is no class.
[[nodiscard]] at::Tensor checked_losses(const at::Tensor& statistics, const Targets& targets,
                                        const ClassShards& shards);

/// What `options.reduction` makes of rows' losses, over the replicas.
[[nodiscard]] at::Tensor reduced(const at::Tensor& losses, const Targets& targets,
                                 const ParallelCrossEntropyOptions& options);

}  // namespace autopar::detail
