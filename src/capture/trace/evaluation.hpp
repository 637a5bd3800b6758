#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar::trace {

/// The operators that wrote, directly or not, the memory of the values: [op]. O(ops).
[[nodiscard]] std::vector<bool> ops_behind(const OpGraph& graph, const std::vector<ValueId>& values);

/// The data of the values if it depends only on constants, not on arguments, parameters, buffers or random numbers;
/// else nullopt. The operators behind the values compute it on the CPU.
[[nodiscard]] std::optional<std::vector<at::Tensor>> evaluate_constants(const OpGraph& graph,
                                                                        const std::vector<ValueId>& values);

}  // namespace autopar::trace
