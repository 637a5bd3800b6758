#pragma once

#include <cstdint>

#include <autopar/capture/op_graph.hpp>

namespace autopar::ir {

/// `graph.hash()` without strides: equal for programs that differ only in tensor layouts. One plan fits all of these.
[[nodiscard]] std::uint64_t hash_without_strides(const OpGraph& graph);

}  // namespace autopar::ir
