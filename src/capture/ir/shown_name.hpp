#pragma once

#include <string>

#include <autopar/capture/op_graph.hpp>

#include "capture/ir/collectives.hpp"

namespace autopar::ir {

/// The operator's name in the user's code, for messages. An operator that a capture records instead of another has the
/// other's name.
[[nodiscard]] inline std::string shown_name(const OpGraph& graph, OpId op) {
  const auto& name = graph.name(op);
  const auto* collective = collective_named(name);
  return collective == nullptr ? name : std::string(collective->stands_for);
}

}  // namespace autopar::ir
