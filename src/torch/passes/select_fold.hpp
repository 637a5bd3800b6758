#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Replaces selections that together cover a whole dimension of a value, as `qkv[0], qkv[1], qkv[2]`, by one
/// aten::unbind at the place of the first. The backward of each selection fills a gradient of the whole value, and
/// autograd adds these. The backward of unbind joins the parts once. Exact, except for the sign of zeros.
///
/// Only where nobody writes the value's memory once the first selection is made. Values and ops are renumbered.
/// O(graph).
[[nodiscard]] OpGraph fold_selects(OpGraph graph);

}  // namespace autopar::passes
