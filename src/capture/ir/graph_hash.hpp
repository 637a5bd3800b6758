#pragma once

#include <cstdint>

#include <autopar/capture/op_graph.hpp>

namespace autopar::detail {

/// `graph.hash()` without strides: equal for programs that differ in how tensors lie in memory only, which one plan
/// fits.
[[nodiscard]] std::uint64_t hash_without_strides(const OpGraph& graph);

}  // namespace autopar::detail
