#pragma once

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar::autograd {

/// Runs a cross entropy with a custom autograd function that overwrites saved memory with the gradient. The function
/// saves the log-probabilities and turns them into the gradient of the logits, (softmax - one-hot) x factor. libtorch's
/// saves them next to the gradient of the log-probabilities and the gradient of the logits. That is three times the
/// logits' memory; this function needs it once.
///
/// Values are the same except for rounding. A backward that keeps its graph leaves the log-probabilities intact.
/// Operators that take means run unchanged, because operators of a BatchSemantics sum: see BatchSemantics::counts.
/// @pre `ops::gradient_place` allows it: class indices without label smoothing, in single or double precision, or
/// 16-bit logits with no later reader
void run_with_gradient_in_place(replay::ReplayCall& call);

}  // namespace autopar::autograd
