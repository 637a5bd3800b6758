#pragma once

#include <span>
#include <string>

#include <autopar/plan/plan.hpp>

#include <autopar/capture/op_graph.hpp>

namespace autopar::planning {

/// The operators in Graphviz's dot: a box around each stage, and in it boxes around each module (`module_paths`), as
/// modules lie in one another. An edge shows the sizes of its value (B is the batch). O((ops + edges) log ops), and ops
/// times the modules that are in one.
/// @param comment  the first lines
/// @param stages   of a plan for this program; none: no boxes
[[nodiscard]] std::string to_dot(const OpGraph& graph, const std::string& comment,
                                 std::span<const StagePlan> stages = {});

}  // namespace autopar::planning
