#pragma once

#include <cstddef>
#include <cstdint>

#include <autopar/core/ids.hpp>

namespace autopar::detail {

/// A set of nodes of a small graph.
using NodeMask = std::uint64_t;
inline constexpr std::size_t kMaskNodes = 64;

[[nodiscard]] constexpr NodeMask bit(NodeId node) { return NodeMask{1} << node.index(); }

}  // namespace autopar::detail
