#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Turns the loss of a class head in two operators (`nll_loss(log_softmax(logits, 1), target)`) into the
/// aten::cross_entropy_loss that libtorch makes of these two: what is known of the one, as its gradient in place and
/// its shards of classes, holds for both ways to write it. Only where nothing else reads the log-probabilities. Exact.
/// Values and ops are renumbered. O(graph).
[[nodiscard]] OpGraph fold_class_loss(OpGraph graph);

}  // namespace autopar::passes
