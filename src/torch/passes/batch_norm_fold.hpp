#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Turns a batch norm in training mode, the addition of a tensor of the same sizes and ReLU, as in
/// `relu_(norm(x) += shortcut)`, into one operator (ir/batch_norm_relu.hpp), which reads and writes data fewer times on
/// CUDA devices. The addition, ReLU or both may be missing; what lies between must be read by nobody else.
///
/// Where kernels of the library's own run it, the norm's result is not rounded before the addition; elsewhere it runs
/// libtorch's operators, with the same result to the bit. Values and ops are renumbered. O(graph).
[[nodiscard]] OpGraph fold_batch_norms(OpGraph graph);

}  // namespace autopar::passes
