#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <autopar/shard/cross_entropy.hpp>
#include <autopar/shard/linear.hpp>
#include <autopar/shard/placed.hpp>

namespace autopar {

/// The dim along which logits are computed in chunks.
enum class LogitChunks : std::uint8_t {
  kAuto,     ///< classes if this rank has more classes than rows, so that each pass reads the weight once
  kClasses,  ///< statistics of one chunk of classes after another (Milakov and Gimelshein 2018)
  kRows,     ///< some rows of all classes (Liger: Hsu et al. 2024, section 3.2)
};

struct LinearCrossEntropyOptions {
  LinearCrossEntropyOptions() = default;
  LinearCrossEntropyOptions(ParallelCrossEntropyOptions of)  // NOLINT(google-explicit-constructor)
      : loss_(std::move(of)) {}

  TORCH_ARG(ParallelCrossEntropyOptions, loss);
  TORCH_ARG(LogitChunks, chunks) = LogitChunks::kAuto;
  /// Number of logits in memory at a time, rounded up to one row or class.
  TORCH_ARG(std::int64_t, chunk_elements) = std::int64_t{1} << 22;
};

/// Cross-entropy of features·weightᵀ + bias, computed in chunks of logits that are recomputed in the backward. Cost:
/// twice the products of the forward. Memory besides the gradients: one chunk.
///
///     features                forward            backward
///     Replicate               1 all-gather       all-reduce of their gradient
///     Shard(0): own samples   2 all-gathers      reduce-scatter of it
///
/// Gradients of weight and bias are this rank's. Under autocast, products use its element type.
/// @param features  [N, D]
/// @param weight    [C, D], Shard(0) or replicated
/// @param bias      [C], placed as the weight
/// @param target    [N], of all samples, on all ranks
/// @throws InvalidArgument as parallel_cross_entropy
/// @source Wijmans et al. 2025, "Cut Your Losses in Large-Vocabulary Language Models", sections 4.1 to 4.3
[[nodiscard]] at::Tensor linear_cross_entropy(const Placed& features, const Placed& weight,
                                              const std::optional<Placed>& bias, const at::Tensor& target,
                                              const LinearCrossEntropyOptions& options = {});

/// With the weight and bias of a layer without a dim or with dim 1.
[[nodiscard]] at::Tensor linear_cross_entropy(const Placed& features, const ParallelLinear& head,
                                              const at::Tensor& target, const LinearCrossEntropyOptions& options = {});

}  // namespace autopar
