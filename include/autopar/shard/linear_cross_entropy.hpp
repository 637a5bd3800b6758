#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <autopar/shard/cross_entropy.hpp>
#include <autopar/shard/linear.hpp>
#include <autopar/shard/placed.hpp>

namespace autopar {

/// Which of the two dims of the logits are made piece by piece.
enum class LogitChunks : std::uint8_t {
  kAuto,     ///< classes where this rank has more of them than rows: each reads its part of the weight once a pass
  kClasses,  ///< Milakov and Gimelshein 2018: statistics of one part of the classes after another
  kRows,     ///< Liger (Hsu et al. 2024, section 3.2): some rows of all classes
};

struct LinearCrossEntropyOptions {
  LinearCrossEntropyOptions() = default;
  LinearCrossEntropyOptions(ParallelCrossEntropyOptions of)  // NOLINT(google-explicit-constructor)
      : loss_(std::move(of)) {}

  TORCH_ARG(ParallelCrossEntropyOptions, loss);
  TORCH_ARG(LogitChunks, chunks) = LogitChunks::kAuto;
  /// Of logits that are there at a time, rounded up to one row or class.
  TORCH_ARG(std::int64_t, chunk_elements) = std::int64_t{1} << 22;
};

/// Cross-entropy of features·weightᵀ + bias, whose logits are never there but for a chunk: they are made again in the
/// backward (Wijmans et al. 2025, "Cut Your Losses in Large-Vocabulary Language Models", sections 4.1 to 4.3). Twice
/// the products of the forward; memory beside the gradients: the chunk.
///
///     features                forward            backward
///     Replicate               1 all-gather       all-reduce of their gradient
///     Shard(0): own samples   2 all-gathers      reduce-scatter of it
///
/// Gradients of weight and bias are this rank's own. Under autocast products are in its type.
/// @param features  [N, D]. @param weight [C, D], Shard(0) or on all ranks. @param bias [C], as the weight
/// @param target    [N], of all samples, on all ranks
/// @throws InvalidArgument as parallel_cross_entropy
[[nodiscard]] at::Tensor linear_cross_entropy(const Placed& features, const Placed& weight,
                                              const std::optional<Placed>& bias, const at::Tensor& target,
                                              const LinearCrossEntropyOptions& options = {});

/// With the weight and bias of a layer without a dim or of dim 1.
[[nodiscard]] at::Tensor linear_cross_entropy(const Placed& features, const ParallelLinear& head,
                                              const at::Tensor& target, const LinearCrossEntropyOptions& options = {});

}  // namespace autopar
