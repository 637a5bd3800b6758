#pragma once

#include <cstdint>

#include <autopar/capture/op_graph.hpp>

namespace autopar::fused::pointwise {

/// The operator's arguments.
struct PointwiseArgument {
  enum : std::int32_t { kInputs, kProgram, kCount };
};

/// Turns operators that treat each element by itself, and that read each other's results, into one
/// (`kJoinedPointwise`): `silu(gate) * up`, `x + scale * branch`, casts between them. What a group makes is written
/// once, what it makes for itself never; values that others read are results of it.
///
/// A group takes functional operators on floating point tensors of samples, all of the same sizes (others broadcast to
/// them). It runs where its last operator did, so that nothing in between reads or writes what it does. Exact where no
/// kernels of the library's own run it. Values and ops are renumbered. O(graph * largest group).
[[nodiscard]] OpGraph fold_pointwise(OpGraph graph);

}  // namespace autopar::fused::pointwise
