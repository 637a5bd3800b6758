#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Moves casts of views of a parameter before the views: autocast casts what an operator is given, such as the
/// transposed weight of a linear layer; after the pass it is the parameter itself that is cast, as often as before, and
/// the copy may be made once for all micro-batches. Only where the view of the copy lies in memory as the copy of the
/// view did.
///
/// Exact: the same elements are rounded in the same way. Values and ops are renumbered. O(graph).
[[nodiscard]] OpGraph hoist_parameter_casts(OpGraph graph);

}  // namespace autopar::passes
