#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/plan/memory/stage_memory.hpp>

namespace autopar::detail {

/// What nodes make a stage hold, whatever the stages: a static memory lower bound for searches. Parameters with several
/// readers count once in each stage that reads them, so they are kept apart.
struct HeldByNodes {
  struct Tied {
    std::vector<NodeId> readers;  ///< ascending, at least two
    LeastHeld held;
    Bytes trained{};  ///< 0 if it is not trainable
  };
  std::vector<LeastHeld> held;  ///< by node: parameters that it alone reads, and what it holds besides
  std::vector<Bytes> trained;   ///< by node: trainable bytes among these
  std::vector<Tied> tied;
  std::vector<std::vector<std::size_t>> tied_of;  ///< by node: indices of `tied`

  HeldByNodes(const Workload& work, const Constraints& constraints)
      : held(work.graph.node_count()), trained(held.size()), tied_of(held.size()) {
    std::vector<std::vector<NodeId>> readers(work.parameters.size());
    for (const NodeId node : work.graph.nodes()) {
      held[node.index()].whole = work.graph[node].resident.value();
      for (const ParameterId parameter : work.graph[node].parameters) readers[parameter.index()].push_back(node);
    }
    for (std::size_t p = 0; p < readers.size(); ++p) {
      if (readers[p].empty()) continue;
      const ParameterProfile& parameter = work.parameters[p];
      const LeastHeld own = least_held(parameter, constraints, readers[p].size());
      const Bytes bytes = parameter.trainable ? parameter.bytes : Bytes(0);
      if (readers[p].size() > 1) {
        for (const NodeId node : readers[p]) tied_of[node.index()].push_back(tied.size());
        tied.push_back({std::move(readers[p]), own, bytes});
        continue;
      }
      held[readers[p].front().index()] += own;
      trained[readers[p].front().index()] += bytes;
    }
  }
};

}  // namespace autopar::detail
