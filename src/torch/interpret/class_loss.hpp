#pragma once

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar {

/// Whether the gradient of a cross entropy's logits is made in the memory of the log-probabilities that its forward
/// left: class indices without label smoothing, in single or double precision.
[[nodiscard]] bool makes_gradient_in_place(const OpGraph& graph, OpId op);

/// Runs such a cross entropy with a history that keeps the log-probabilities, and turns them into the gradient of the
/// logits, (softmax - one-hot) x factor. libtorch's own keeps them beside the gradient of their sum and that of the
/// logits, three times the logits where this holds them once. Rounding apart the same values; a backward that keeps its
/// graph leaves them as they are. Operators that take means are left as they are: those of a BatchPlan sum, see
/// BatchPlan::counts.
void proceed_with_gradient_in_place(ReplayCall& call);

}  // namespace autopar
