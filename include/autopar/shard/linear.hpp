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
  /// 1 or -1: column parallel, each rank has some of the outputs. 0: row parallel, some of the inputs. None: all.
  TORCH_ARG(std::optional<int>, dim) = std::nullopt;
  /// That shares the weight; a rank alone has all of it.
  TORCH_ARG(Group, group);
  /// The sharded dim is cut into whole units of so many: an attention head, say.
  TORCH_ARG(std::int64_t, unit) = 1;
};

/// y = x Wᵀ + b with W [out, in] cut over a group (Shoeybi et al. 2019, "Megatron-LM", section 3). In the names of
/// TorchShard, `dim` is the one of the features that is cut.
///
///     dim      weight here  bias here  takes                           gives           forward      backward
///     1, -1    [out/P, in]  [out/P]    Replicate                       Shard(last)     nothing      all-reduce of dx
///                                      Shard(a dim before the last)    Shard(last)     all-gather   reduce-scatter
///     0        [out, in/P]  [out]      Shard(last), as a column gives  Replicate       all-reduce   nothing
///                                      Replicate                       Replicate       all-reduce   all-gather of dx
///     none     [out, in]    [out]      Replicate                       Replicate       nothing      nothing
///
/// Without a group, or alone in it, it is torch::nn::Linear, the only form that AutoParallel takes: its planner shards.
/// Forward and backward are collective over the group. Parameters start as those of torch::nn::Linear under the seed of
/// the group's first rank, without the whole weight on any; the default generator goes on as after the dense layer, if
/// it stood where the first rank's did.
/// @throws InvalidArgument for another dim, or a value that lies otherwise than the table says, naming the way out
class ParallelLinearImpl : public torch::nn::Cloneable<ParallelLinearImpl>, public HasShards {
 public:
  ParallelLinearImpl(std::int64_t in_features, std::int64_t out_features)
      : ParallelLinearImpl(ParallelLinearOptions(in_features, out_features)) {}
  /// Collective over the group, as `reset` and `clone` are.
  explicit ParallelLinearImpl(ParallelLinearOptions options);
  /// This rank's slices of a layer that all ranks have.
  ParallelLinearImpl(const torch::nn::LinearImpl& dense, int dim, Group group, std::int64_t unit = 1);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  [[nodiscard]] Placed forward(const Placed& x);

  /// Cuts a layer that was made without a group; parameters stay the same handles. Not collective.
  /// @throws InvalidArgument if it has been cut
  void shard(int dim, Group group, std::int64_t unit = 1);

  [[nodiscard]] std::vector<ShardedParameter> shards() const override;
  /// As values: weight [out, in], bias [out]; what the loss fused with this layer takes.
  [[nodiscard]] Placed placed_weight() const;
  [[nodiscard]] std::optional<Placed> placed_bias() const;

  ParallelLinearOptions options;
  at::Tensor weight;  ///< this rank's slice
  at::Tensor bias;    ///< undefined without

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

/// The same between plain tensors that all ranks have: a column's slices are gathered. For torch::nn::Sequential, whose
/// modules hand on tensors.
class GatheredLinearImpl : public ParallelLinearImpl {
 public:
  using ParallelLinearImpl::ParallelLinearImpl;

  [[nodiscard]] at::Tensor forward(const at::Tensor& x);
  /// Of this type, which a Sequential asks for. Collective over the group.
  [[nodiscard]] std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
};

TORCH_MODULE(GatheredLinear);

}  // namespace autopar
