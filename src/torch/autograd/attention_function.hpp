#pragma once

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar::autograd {

/// Whether an operator is attention without a mask whose queries, keys and values all need gradients.
[[nodiscard]] bool attends_without_mask(const OpGraph& graph, OpId op);

/// Runs attention without a mask with a custom autograd function. It applies if libtorch chooses cuDNN's kernels, and
/// queries, keys and values are all the parts of one tensor. The function writes their gradients directly to their
/// places in that tensor's gradient. libtorch would join the three gradients in another pass. In other cases libtorch
/// runs it unchanged. Same kernels, same values.
void run_attention_with_joined_gradients(replay::ReplayCall& call);

}  // namespace autopar::autograd
