#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Replaces a loss in two operators (`nll_loss(log_softmax(logits, 1), target)`) by aten::cross_entropy_loss, which
/// libtorch defines as these two. All rules for that operator then hold for both forms, such as its gradient in place
/// and its shards of classes. Only where nothing else reads the log-probabilities. Exact. Values and ops are
/// renumbered. O(graph).
[[nodiscard]] OpGraph fold_class_loss(OpGraph graph);

}  // namespace autopar::passes
