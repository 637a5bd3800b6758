#pragma once

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar {

/// Whether the result of a linear layer may have gaps behind its rows: it is logits that a cross entropy of the
/// library's own reads last (`kCrossEntropy`), past views at most.
[[nodiscard]] bool may_pad_rows(const OpGraph& graph, OpId linear);

/// Runs such a layer, on a GPU in 16 bits with `linear_in_padded_rows`.
void proceed_in_padded_rows(ReplayCall& call);

}  // namespace autopar
