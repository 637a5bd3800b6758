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

/// Those of torch::nn::CrossEntropyLoss, and what only a parallel one has.
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
  /// Groups that hold the same shards and other samples (Groups::replicas): a sum or mean is that of all samples, the
  /// same value on all of them, the gradient that of this rank's part; sum the gradients, do not average them.
  TORCH_ARG(Group, replicas);
  /// The backward may write the gradient over the logits, which then are lost, as is a second backward. It does not
  /// where they are a leaf of the graph.
  TORCH_ARG(bool, in_place) = true;
  /// On a CUDA device: a wait for the device in each call. Without it, a target that is no class makes its loss NaN.
  TORCH_ARG(bool, check_targets) = true;
};

/// torch::nn::CrossEntropyLoss of logits whose classes are sharded; the same numbers, without the whole of them on any
/// rank. One all-gather of three or four numbers a row in the forward (logarithm of the sum of exponentials, whether
/// there is one, target's logit; with smoothing the weighted sum), nothing in the backward. Memory beside the logits: a
/// few MiB, on GPUs 64. The statistics are in fp32 at least, and so is the loss.
///
/// Softmax over shards by partial maxima and sums: Shoeybi et al. 2019, section 3; merging them in one step: Milakov
/// and Gimelshein 2018, "Online normalizer calculation for softmax", equation 4.
///
/// Logits are [C], [N, C] or [N, C, …], sharded along C or on all ranks, targets int64 indices of classes, the same on
/// all ranks of the group. A rank alone, or logits that are on all ranks: torch's own operators.
/// Forward collective over the group and, for a sum or mean, over the replicas.
/// @throws InvalidArgument on all ranks of the group if a target on any is no class, with its value and position, or
/// targets differ
///         between ranks; for logits that lie otherwise, other shapes, and probabilities as targets
[[nodiscard]] at::Tensor parallel_cross_entropy(const Placed& logits, const at::Tensor& target,
                                                const ParallelCrossEntropyOptions& options = {});

/// The same as a module.
class ParallelCrossEntropyLossImpl : public torch::nn::Cloneable<ParallelCrossEntropyLossImpl> {
 public:
  explicit ParallelCrossEntropyLossImpl(ParallelCrossEntropyOptions options = {});

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  [[nodiscard]] at::Tensor forward(const Placed& logits, const at::Tensor& target);

  ParallelCrossEntropyOptions options;
  at::Tensor weight;  ///< a buffer; undefined without
};

TORCH_MODULE(ParallelCrossEntropyLoss);

}  // namespace autopar
