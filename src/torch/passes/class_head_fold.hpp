#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Turns each class head, a linear layer and the cross entropy of its result, into the one operator that makes the
/// logits piece by piece (`kLinearCrossEntropy`): a third more products, no logits in memory. Between the two may be a
/// reshape to [N, C] and a cast to single precision. Only where nothing else reads the logits, and targets are indices;
/// others stay as they are. The same values but for the order in which they are added up. Values and ops are
/// renumbered. O(graph).
[[nodiscard]] OpGraph fold_class_heads(OpGraph graph);

/// Bytes of logits that `fold_class_heads` leaves out for `samples` samples; 0: it finds no head.
[[nodiscard]] double logits_of_class_heads(const OpGraph& graph, std::int64_t samples);

}  // namespace autopar::passes
