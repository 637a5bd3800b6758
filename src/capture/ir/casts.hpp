#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::ir {

/// Whether the op is `aten::to` another floating element type alone: a copy in new memory, strides included.
[[nodiscard]] bool is_cast(const OpGraph& graph, OpId op);

/// Whether the op is a cast of a parameter.
[[nodiscard]] bool casts_parameter(const OpGraph& graph, OpId op);

}  // namespace autopar::ir
