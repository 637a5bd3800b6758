#pragma once

#include <cstdint>

#include <autopar/cost/weighted.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/testing/random_models.hpp>

namespace autopar::test {

/// A chain of nodes that take 1 s forward and 2 s backward, half of it for weights, a micro-batch; free links.
struct EqualNodes {
  Graph<int, int> graph;
  Cluster cluster = testing::small_cluster(4);
  Constraints constraints;
  double value_bytes;  ///< of a sample, between two nodes

  /// @param batch  large enough that no micro-batch is empty
  EqualNodes(int nodes, std::int64_t batch, double bytes) : value_bytes(bytes) {
    for (int i = 0; i < nodes; ++i) graph.add_node(i);
    for (int i = 0; i + 1 < nodes; ++i) graph.add_edge(NodeId(i), NodeId(i + 1), i);
    for (auto& level : cluster.levels) level.link = {Seconds(0), BytesPerSecond(1e30)};
    constraints.world = 4;
    constraints.batch = batch;
    constraints.memory = Bytes(1'000'000);
  }
  auto cost() const {
    return WeightedCost(
        cluster,
        [](const auto&, NodeId, double) {
          return NodeCost{Seconds(1), Seconds(2), Bytes(10), Bytes(3), Seconds(1), Bytes(7)};
        },
        [bytes = value_bytes](const auto&, EdgeId e) {
          return ValueProfile{e.value(), {bytes, 0}, true};
        });
  }
};

}  // namespace autopar::test
