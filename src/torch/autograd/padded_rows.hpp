#pragma once

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar::autograd {

/// Whether the rows of a linear layer's result may be padded. The result must be logits whose last reader is the
/// library's cross entropy (`kCrossEntropy`), with at most views between them.
[[nodiscard]] bool may_pad_rows(const OpGraph& graph, OpId linear);

/// Runs a linear layer; on a GPU in 16 bits with `linear_in_padded_rows`.
void run_in_padded_rows(replay::ReplayCall& call);

}  // namespace autopar::autograd
