#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Turns the sum of two tensors of the same sizes and the layer norm over the last dim that reads it first into one
/// operator (ir/add_layer_norm.hpp): residuals of transformers, `y = x + f(x); … norm(y)`. The sum may have other
/// readers behind the norm. A dropout that makes one of the addends, for the sum alone, is taken in: its draws follow
/// the number of the operator, as all do. Exact where no kernels of the library's own run it. Values and ops are
/// renumbered. O(graph).
[[nodiscard]] OpGraph fold_layer_norms(OpGraph graph);

}  // namespace autopar::passes
