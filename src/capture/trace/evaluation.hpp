#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar::detail {

/// The operators that wrote, directly or not, the memory of the values: [op]. O(ops).
[[nodiscard]] std::vector<bool> ops_behind(const OpGraph& graph, const std::vector<ValueId>& values);

/// The data of the values if it follows from constants alone (no argument, parameter, buffer or draw), computed on the
/// CPU by the operators behind them; else nothing.
[[nodiscard]] std::optional<std::vector<at::Tensor>> evaluate_constants(const OpGraph& graph,
                                                                        const std::vector<ValueId>& values);

}  // namespace autopar::detail
