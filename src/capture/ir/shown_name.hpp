#pragma once

#include <string>

#include <autopar/capture/op_graph.hpp>

#include "capture/ir/collectives.hpp"

namespace autopar {

/// The operator as its user knows it, for messages: what a capture records in place of another goes by that one's name.
[[nodiscard]] inline std::string shown_name(const OpGraph& graph, OpId op) {
  const auto& name = graph.name(op);
  const auto* collective = collective_named(name);
  return collective == nullptr ? name : std::string(collective->stands_for);
}

}  // namespace autopar
