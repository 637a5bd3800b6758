#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Turns the loss of a class head in two operators (`nll_loss(log_softmax(logits, 1), target)`) into the
/// aten::cross_entropy_loss that libtorch makes of these two: what is known of the one, as its gradient in place and
/// its shards of classes, holds for both ways to write it. Only where nothing else reads the log-probabilities. Exact.
/// Values and ops are renumbered. O(graph).
[[nodiscard]] OpGraph fold_class_loss(OpGraph graph);

/// Turns cross entropies of class indices, and the casts of 16-bit logits to single precision in front of them, into
/// the operator of ir/cross_entropy.hpp, for devices that have its kernels: logits in single precision are never there,
/// and are read twice in all. Exact elsewhere. Values and ops are renumbered. O(graph).
[[nodiscard]] OpGraph fold_class_loss_casts(OpGraph graph);

}  // namespace autopar::passes
