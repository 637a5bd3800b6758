#pragma once

#include "torch/ir/op_graph.hpp"
#include "torch/replay/replay.hpp"

namespace autopar {

/// Whether the result of a linear layer may have gaps behind its rows: it is logits that a cross entropy of the
/// library's own reads last (`kCrossEntropy`), past views at most.
[[nodiscard]] bool may_pad_rows(const OpGraph& graph, OpId linear);

/// Runs such a layer. On a GPU, rows of 16-bit numbers begin where packs of 16 bytes do, also those of 30,522 classes:
/// else products that read or write them run on kernels of GPUs before, at a third of the speed.
void proceed_in_padded_rows(ReplayCall& call);

}  // namespace autopar
