#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <autopar/shard/group.hpp>
#include <autopar/shard/placed.hpp>
#include <autopar/shard/sharded_parameter.hpp>

namespace autopar {

struct ParallelLinearOptions {
  ParallelLinearOptions(std::int64_t in_features, std::int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}

  TORCH_ARG(std::int64_t, in_features);
  TORCH_ARG(std::int64_t, out_features);
  TORCH_ARG(bool, bias) = true;
  /// 1 or -1: column parallel, each rank has some outputs. 0: row parallel, some inputs. None: each rank has all.
  TORCH_ARG(std::optional<int>, dim) = std::nullopt;
  /// The ranks that share the weight; a rank alone has all of it.
  TORCH_ARG(Group, group);
  /// The sharded dim is cut into multiples of this, such as the size of an attention head.
  TORCH_ARG(std::int64_t, unit) = 1;
};

/// y = x Wᵀ + b with W [out, in] sharded over a group (Shoeybi et al. 2019, "Megatron-LM", section 3). As in
/// TorchShard, `dim` is the feature dim that is sharded.
///
///     dim      weight here  bias here  takes                           gives           forward      backward
///     1, -1    [out/P, in]  [out/P]    Replicate                       Shard(last)     nothing      all-reduce of dx
///                                      Shard(a dim before the last)    Shard(last)     all-gather   reduce-scatter
///     0        [out, in/P]  [out]      Shard(last), as a column gives  Replicate       all-reduce   nothing
///                                      Replicate                       Replicate       all-reduce   all-gather of dx
///     none     [out, in]    [out]      Replicate                       Replicate       nothing      nothing
///
/// Without a group, or alone in it, it is torch::nn::Linear. AutoParallel accepts only this form, since its planner
/// shards. Forward and backward are collective over the group. Parameters start as those of torch::nn::Linear with the
/// seed of the group's first rank; no rank has the whole weight. The default generator advances as with the dense
/// layer, if it was in the state of the first rank's.
/// @throws InvalidArgument for another dim, or a value with another placement than in the table, with what to do
class ParallelLinearImpl : public torch::nn::Cloneable<ParallelLinearImpl>, public HasShards {
 public:
  ParallelLinearImpl(std::int64_t in_features, std::int64_t out_features)
      : ParallelLinearImpl(ParallelLinearOptions(in_features, out_features)) {}
  /// Collective over the group, as are `reset` and `clone`.
  explicit ParallelLinearImpl(ParallelLinearOptions options);
  /// Takes this rank's slices of a layer that all ranks have.
  ParallelLinearImpl(const torch::nn::LinearImpl& dense, int dim, Group group, std::int64_t unit = 1);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  [[nodiscard]] Placed forward(const Placed& x);

  /// Shards a layer that was made without a group; parameters keep their handles. Not collective.
  /// @throws InvalidArgument if it is sharded
  void shard(int dim, Group group, std::int64_t unit = 1);

  [[nodiscard]] std::vector<ShardedParameter> shards() const override;
  /// The weight [out, in] and bias [out] with their placements, for `linear_cross_entropy`.
  [[nodiscard]] Placed placed_weight() const;
  [[nodiscard]] std::optional<Placed> placed_bias() const;

  ParallelLinearOptions options;
  at::Tensor weight;  ///< this rank's slice
  at::Tensor bias;    ///< undefined if there is no bias

 private:
  [[nodiscard]] bool is_column() const { return options.dim().has_value() && *options.dim() != 0; }
  [[nodiscard]] bool is_row() const { return options.dim() == 0; }
  [[nodiscard]] bool is_dense() const { return !options.dim().has_value() || options.group().is_alone(); }
  /// Of the weight.
  [[nodiscard]] int sharded_dim() const { return is_column() ? 0 : 1; }
  [[nodiscard]] Split split() const;
  [[nodiscard]] at::Tensor own_part(const at::Tensor& whole, int dim) const;
  [[nodiscard]] Placed forward_column(const Placed& x);
  [[nodiscard]] Placed forward_row(const Placed& x);
};

TORCH_MODULE(ParallelLinear);

/// A ParallelLinear that takes and returns plain tensors that all ranks have: a column's slices are gathered. For
/// torch::nn::Sequential, whose modules pass tensors.
class GatheredLinearImpl : public ParallelLinearImpl {
 public:
  using ParallelLinearImpl::ParallelLinearImpl;

  [[nodiscard]] at::Tensor forward(const at::Tensor& x);
  /// Returns a GatheredLinear, as Sequential requires. Collective over the group.
  [[nodiscard]] std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
};

TORCH_MODULE(GatheredLinear);

}  // namespace autopar
