#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include <autopar/core/ids.hpp>

namespace autopar::detail {

/// A set of nodes of a small graph.
using NodeMask = std::uint64_t;
inline constexpr std::size_t kMaskNodes = 64;

[[nodiscard]] constexpr NodeMask bit(NodeId node) { return NodeMask{1} << node.index(); }

/// Calls visit(NodeId) for each member.
template <class Visit>
constexpr void for_each_node(NodeMask nodes, const Visit& visit) {
  for (; nodes != 0; nodes &= nodes - 1) visit(NodeId(std::countr_zero(nodes)));
}

}  // namespace autopar::detail
