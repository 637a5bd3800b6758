#pragma once

#include <string>

#include <autopar/plan/plan.hpp>

#include <autopar/capture/op_graph.hpp>

namespace autopar {

/// The captured operators in Graphviz's dot, a box around each stage of the plan; an edge shows the sizes of its value
/// (B is the batch). O(ops + edges).
[[nodiscard]] std::string to_dot(const OpGraph& graph, const Plan& plan);

/// The same of a program that no plan divides. @param mark  the first line, a comment @param title  the second one
[[nodiscard]] std::string to_dot(const OpGraph& graph, const std::string& mark, const std::string& title);

}  // namespace autopar
