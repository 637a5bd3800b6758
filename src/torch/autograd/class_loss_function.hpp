#pragma once

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar {

/// Runs a cross entropy whose gradient is made over what it keeps or reads (`ops::gradient_place`: class indices
/// without label smoothing, in single or double precision, or 16-bit logits that nothing reads any more), with an
/// autograd function that keeps the log-probabilities, and turns them into the gradient of the logits, (softmax -
/// one-hot) x factor. libtorch's own keeps them beside the gradient of their sum and that of the logits, three times
/// the logits where this holds them once. Rounding apart the same values; a backward that keeps its graph leaves them
/// as they are. Operators that take means are left as they are: those of a BatchPlan sum, see BatchPlan::counts.
void proceed_with_gradient_in_place(ReplayCall& call);

}  // namespace autopar
