#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <autopar/shard/margin.hpp>

/// The arithmetic of a cross-entropy whose classes are in blocks, of one rank or many. A block of logits is a matrix
/// [rows, some consecutive classes]; beside it functions take the memory of some of its rows in the type of statistics.
///
/// A device may have kernels for losses without smoothing and margin, as implementations of two operators. They return
/// false, and do nothing, for arguments that they do not support. Targets of rows that do not count are -1.
/// - `autopar::class_block_statistics` writes `block_statistics` into `made`.
/// - `autopar::class_block_gradient` writes `block_gradient` into `made`, which may be the logits.
namespace autopar::detail {

/// The rows' targets: indices of classes, and which of them count.
struct Targets {
  at::Tensor index;   ///< [N] int64; anything where the row does not count
  at::Tensor counts;  ///< [N] bool: neither ignored nor out of range

  [[nodiscard]] Targets rows(std::int64_t begin, std::int64_t length) const;
};

/// What the loss of a row is made of.
struct RowLoss {
  std::int64_t classes = 0;
  double smoothing = 0;
  std::optional<Margin> margin;
  at::Tensor weight;  ///< [classes] in the type of statistics; undefined: ones

  /// Σ of the weights of some classes: [] in the type of statistics.
  [[nodiscard]] at::Tensor mass(std::int64_t begin, std::int64_t length, const at::TensorOptions& type) const;
  /// Of the rows' targets, 0 where they do not count.
  [[nodiscard]] at::Tensor target_weight(const Targets& targets, c10::ScalarType type) const;
  /// Rows of statistics: a logarithm near the largest logit, sum of exponentials relative to it, logit of the target (0
  /// if it is elsewhere), and, with smoothing, the sum of weight·(logit − that logarithm).
  [[nodiscard]] std::int64_t statistics() const { return smoothing > 0 ? 4 : 3; }
};

[[nodiscard]] c10::ScalarType statistics_type(c10::ScalarType logits);

/// [statistics, rows]. A block without classes has its own: nothing.
[[nodiscard]] at::Tensor block_statistics(const at::Tensor& logits, std::int64_t first_class, const Targets& targets,
                                          const RowLoss& loss);

/// Those of blocks together. @param statistics [blocks, statistics, rows] @param masses [blocks], with smoothing
[[nodiscard]] at::Tensor merged(const at::Tensor& statistics, const at::Tensor& masses);

/// log Σ exp of the logits, [rows].
[[nodiscard]] at::Tensor log_sum_exp(const at::Tensor& statistics);

/// [rows], 0 where they do not count.
[[nodiscard]] at::Tensor row_losses(const at::Tensor& statistics, const Targets& targets, const RowLoss& loss);

/// Of the logits.
/// @param own_log_sums  log Σ exp of the block's own, the first row of its statistics
/// @param log_sums      of all classes
/// @param gradient      of the rows' losses
/// @param result        [rows, classes], of any floating type; may be the logits
void block_gradient(const at::Tensor& logits, std::int64_t first_class, const Targets& targets, const RowLoss& loss,
                    const at::Tensor& own_log_sums, const at::Tensor& log_sums, const at::Tensor& gradient,
                    const at::Tensor& result);

}  // namespace autopar::detail
