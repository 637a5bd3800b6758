#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <autopar/capture/op_def.hpp>
#include <autopar/core/dtype.hpp>

namespace autopar::ops {

using Sizes = std::vector<SizeExpr>;

/// Elements of a value at a batch size.
[[nodiscard]] double elements_at(const Sizes& sizes, std::int64_t batch);
/// The function of the batch that has these values at one and two samples, or the closest function above it.
[[nodiscard]] Affine line_through(double at_one, double at_two);
/// Whether a value of these sizes has an element, however many samples there are.
[[nodiscard]] bool has_elements(const Sizes& sizes);
/// The dims of a value that grow with the batch.
[[nodiscard]] std::vector<std::int64_t> batch_dims(const Sizes& sizes);

/// Type for a value whose content does not depend on the identity of samples (constants, random numbers). Replicated
/// without a batch dim, sample-major batched with one batch dim, else kWhole.
[[nodiscard]] BatchType type_by_sizes(const Sizes& sizes);

/// Applies the typing rule of an op with samples in at least one operand or result, and without partial sums.
[[nodiscard]] BatchTyping type_over_samples(const OpCall& op);

/// Operands of an op over partial sums.
struct SumOperands {
  std::vector<std::int32_t> sums;    ///< schema positions with a partial sum
  std::vector<std::int32_t> shared;  ///< schema positions with replicated tensors
  bool samples = false;              ///< something has samples
  bool integral = false;             ///< a shared tensor that cannot be weighted by n/N

  [[nodiscard]] bool first_only() const { return sums == std::vector<std::int32_t>{0}; }
};
[[nodiscard]] SumOperands sum_operands(const OpCall& op);
/// A partial sum if `is_linear`; else the op needs the complete sum.
[[nodiscard]] BatchTyping linear_in_sum(const OpCall& op, bool is_linear);
/// Linear if only its first argument is a partial sum.
[[nodiscard]] BatchTyping linear_in_first(const OpCall& op);
/// Linear for any operands.
[[nodiscard]] BatchTyping linear_in_all(const OpCall& op);

/// Dims along which an op works; all dims if none is named, nullopt if they are not constants.
[[nodiscard]] std::optional<std::vector<std::int64_t>> named_dims(const OpCall& op, std::int64_t rank);

[[nodiscard]] DType dtype_of(c10::ScalarType type);
/// Bytes of one number of a kernel's statistics for values of this type: at least single precision.
[[nodiscard]] double statistic_bytes(c10::ScalarType type);
[[nodiscard]] std::int64_t last_size(const Sizes& sizes);
/// Number of elements over all dims but the last, which may be empty.
[[nodiscard]] Affine rows_of(const Sizes& sizes);
[[nodiscard]] bool requires_grad(const OpCall& op, ValueId value);
/// Whether a backward will visit the op.
[[nodiscard]] bool is_differentiable(const OpCall& op);
/// Of two factors, each one that the other's gradient needs; for other numbers of factors, all operands.
[[nodiscard]] std::vector<ValueId> factors_to_keep(const OpCall& op, const std::vector<ValueId>& factors);

/// Products that the backward needs: one for each of the first two factors with a gradient.
[[nodiscard]] double products_needed(const OpCall& op, const std::vector<ValueId>& factors);

/// Types the op like `pointwise`, by some of its operands.
[[nodiscard]] BatchTyping pointwise_of(const OpCall& op, const std::vector<ValueId>& operands);

/// Work of one op, forward and backward.
[[nodiscard]] WorkItem work_of(const OpCall& op);
[[nodiscard]] SavedBytes saved_by(const OpCall& op);
[[nodiscard]] OpWorkspace workspace_of(const OpCall& op);
/// Whether the op draws random numbers with these arguments (a dropout with p = 0 does not).
[[nodiscard]] bool draws(const OpCall& op);
/// Whether it writes running statistics: a norm in training.
[[nodiscard]] bool updates_statistics(const OpCall& op);

[[nodiscard]] GradientPlace gradient_place(const OpGraph& graph, OpId op);
/// Whether the memory of an operand is not read after the op, so that the op may overwrite it. Views of the operand are
/// read only by each other and the op. The operators that make these views do not save them.
[[nodiscard]] bool is_last_reader(const OpGraph& graph, OpId op, std::int32_t operand);

}  // namespace autopar::ops
