#pragma once

#include "capture/algebra/op_context.hpp"

namespace autopar::algebra {

[[nodiscard]] Affine bytes_of(const OpGraph& graph, ValueId value);

/// Multiply-adds times two of the products that an op computes; nullopt for ops without products.
[[nodiscard]] std::optional<Affine> product_flops(const OpContext& op);

/// Work of one op, forward and backward.
[[nodiscard]] WorkItem work_of(const OpContext& op);

/// What an op keeps for its backward: tensors of the captured graph, and bytes of tensors that only the op knows.
struct SavedBytes {
  std::vector<ValueId> values;
  Affine internal;
};
[[nodiscard]] SavedBytes saved_by(const OpContext& op);

/// What layers of a recurrent network take that only the op knows: kept for the backward, and while each direction
/// runs.
struct RecurrentMemory {
  Affine saved, forward, backward;
};
/// @pre the op's family is kRecurrent
[[nodiscard]] RecurrentMemory recurrent_memory(const OpContext& op);

/// Whether attention runs as products and a softmax on CPUs, where libtorch has no fused kernel for what it is asked.
/// @pre the op is scaled_dot_product_attention
[[nodiscard]] bool attends_by_products(const OpContext& op);

/// What attention takes that only the op knows: kept for the backward, and while each direction runs.
struct AttentionMemory {
  Affine saved, forward, backward;
};
/// @pre the op is scaled_dot_product_attention
[[nodiscard]] AttentionMemory attention_memory(const OpContext& op);

/// What a class head that makes its logits piece by piece takes that only the op knows: kept for the backward, and
/// while either direction runs.
struct ClassHeadMemory {
  Affine saved, working;
};
/// @pre the op's family is kClassHead
[[nodiscard]] ClassHeadMemory class_head_memory(const OpContext& op);

/// Whether a backward will visit the op.
[[nodiscard]] bool is_differentiable(const OpContext& op);
/// Of views: whether the gradient of what is viewed is memory of its own.
[[nodiscard]] bool copies_in_backward(OpFamily family);

[[nodiscard]] DType dtype_of(c10::ScalarType type);

}  // namespace autopar::algebra
