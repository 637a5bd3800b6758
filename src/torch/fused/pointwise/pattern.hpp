#pragma once

#include <cstdint>

#include <autopar/capture/op_graph.hpp>

namespace autopar::fused::pointwise {

/// The operator's arguments.
struct PointwiseArgument {
  enum : std::int32_t { kInputs, kProgram, kCount };
};

/// Joins element-wise operators that read each other's results into one (`kJoinedPointwise`): `silu(gate) * up`, `x +
/// scale * branch`, and casts between them. Values that others read are results of the group, and are written once.
/// Values that only the group reads are never written.
///
/// A group takes functional operators on floating-point tensors of samples, all of the same sizes (others broadcast to
/// them). It runs at the place of its last operator, so that no operator in between reads or writes its data. Exact
/// where the library's kernels do not run it. Values and ops are renumbered. O(graph * largest group).
[[nodiscard]] OpGraph fold_pointwise(OpGraph graph);

}  // namespace autopar::fused::pointwise
