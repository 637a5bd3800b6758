#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/loss.h>
#include <torch/nn/pimpl.h>

#include <autopar/shard/group.hpp>
#include <autopar/shard/margin.hpp>
#include <autopar/shard/placed.hpp>

namespace autopar {

/// The options of torch::nn::CrossEntropyLoss, and those of a parallel one.
struct ParallelCrossEntropyOptions {
  using reduction_t = torch::nn::CrossEntropyLossOptions::reduction_t;

  ParallelCrossEntropyOptions() = default;
  ParallelCrossEntropyOptions(const torch::nn::CrossEntropyLossOptions& of)  // NOLINT(google-explicit-constructor)
      : weight_(of.weight()),
        ignore_index_(of.ignore_index()),
        reduction_(of.reduction()),
        label_smoothing_(of.label_smoothing()) {}

  /// Of all classes, on every rank.
  TORCH_ARG(at::Tensor, weight);
  TORCH_ARG(std::int64_t, ignore_index) = -100;
  TORCH_ARG(reduction_t, reduction) = torch::kMean;
  TORCH_ARG(double, label_smoothing) = 0;
  TORCH_ARG(std::optional<Margin>, margin) = std::nullopt;
  /// Groups that hold the same shards for other samples (Groups::replicas). A sum or mean is over the samples of all of
  /// them and equal on all. Its gradient is the gradient of this rank's part: sum the gradients, do not average them.
  TORCH_ARG(Group, replicas);
  /// Whether the backward may overwrite the logits with the gradient. They are then lost, and a second backward is not
  /// possible. Logits that are a leaf of the graph are never overwritten.
  TORCH_ARG(bool, in_place) = true;
  /// Checks targets; on a CUDA device each call then waits for the device. Without the check, an invalid target makes
  /// its loss NaN.
  TORCH_ARG(bool, check_targets) = true;
};

/// torch::nn::CrossEntropyLoss of logits whose classes are sharded. The results are the same, and no rank has all
/// logits.
///
/// Communication: one all-gather in the forward, none in the backward. It sends three or four numbers for each row:
/// log-sum-exp, whether it exists, the target's logit, and with smoothing the weighted sum. Memory besides the logits:
/// a few MiB, on GPUs 64. The statistics and the loss are at least fp32.
///
/// Logits are [C], [N, C] or [N, C, …], sharded along C or replicated. Targets are int64 class indices, equal on all
/// ranks of the group. Alone in the group, or with replicated logits, it runs libtorch's operators. The forward is
/// collective over the group and, for a sum or mean, over the replicas.
/// @throws InvalidArgument, on all ranks of the group, if a target on any rank is not a class, with its value and
/// position
/// @throws InvalidArgument, on all ranks of the group, if targets differ between ranks
/// @throws InvalidArgument for logits with another placement or other shapes, and for probabilities as targets
/// @source Softmax over shards by partial maxima and sums: Shoeybi et al. 2019, section 3. Merging them in one step:
/// Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", equation 4.
[[nodiscard]] at::Tensor parallel_cross_entropy(const Placed& logits, const at::Tensor& target,
                                                const ParallelCrossEntropyOptions& options = {});

/// parallel_cross_entropy as a module.
class ParallelCrossEntropyLossImpl : public torch::nn::Cloneable<ParallelCrossEntropyLossImpl> {
 public:
  explicit ParallelCrossEntropyLossImpl(ParallelCrossEntropyOptions options = {});

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  [[nodiscard]] at::Tensor forward(const Placed& logits, const at::Tensor& target);

  ParallelCrossEntropyOptions options;
  at::Tensor weight;  ///< a buffer; undefined if there are no weights
};

TORCH_MODULE(ParallelCrossEntropyLoss);

}  // namespace autopar
