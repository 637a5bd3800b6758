#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Moves casts of views of a parameter before the views. Autocast casts operators' arguments, such as the transposed
/// weight of a linear layer. After the pass the parameter itself is cast, as often as before, and the copy may be made
/// once for all micro-batches. A cast moves only if the view of the copy has the memory layout of the copy of the view.
///
/// Exact: the same elements are rounded in the same way. Values and ops are renumbered. O(graph).
[[nodiscard]] OpGraph hoist_parameter_casts(OpGraph graph);

}  // namespace autopar::passes
