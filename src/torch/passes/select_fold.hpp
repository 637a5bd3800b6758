#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Turns selections that together take a whole dimension of a value, as `qkv[0], qkv[1], qkv[2]`, into one aten::unbind
/// where the first of them was. The backward of a selection fills a gradient of the whole value, which are then added
/// up; that of unbind puts the parts together once. Exact, but for the sign of zeros.
///
/// Only where nobody writes the value's memory once the first selection is made. Values and ops are renumbered.
/// O(graph).
[[nodiscard]] OpGraph fold_selects(OpGraph graph);

}  // namespace autopar::passes
