#pragma once

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar {

/// Whether an operator is attention without a mask, of whose queries, keys and values gradients are asked for.
[[nodiscard]] bool attends_without_mask(const OpGraph& graph, OpId op);

/// Runs such an attention, where libtorch chooses cuDNN's kernels for it and its queries, keys and values are all the
/// parts of one tensor, with an autograd function that writes their gradients where they lie in that tensor's. Without,
/// three gradients are put together by a pass over them. Else as libtorch runs it. Same kernels, same values.
void proceed_with_joined_gradients(ReplayCall& call);

}  // namespace autopar
