#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/cost/profile.hpp"

namespace autopar::cost::detail {

/// What the first of two tensor shards runs, where they divide all regions that they can.
struct HalvedProgram {
  OpGraph graph;
  algebra::BatchSemantics plan;
  /// By NodeId: the operators of an atom with a product that the shards divide, without exchanges. Empty for others,
  /// and for atoms whose shards exchange something meanwhile.
  std::vector<std::vector<OpId>> atoms;
};

/// @cost an analysis of the program
[[nodiscard]] HalvedProgram halved_program(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                           const GraphProfile& profile);

}  // namespace autopar::cost::detail
