#include <autopar/graph/concepts.hpp>

#include <string>
#include <vector>

#include <archetypes/graph.hpp>
#include <autopar/graph/algorithms/acyclic_coarsening.hpp>
#include <autopar/graph/algorithms/acyclic_splitting.hpp>
#include <autopar/graph/algorithms/convexity.hpp>
#include <autopar/graph/algorithms/critical_path.hpp>
#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/graph/algorithms/quotient.hpp>
#include <autopar/graph/algorithms/reachability.hpp>
#include <autopar/graph/algorithms/strongly_connected_components.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/graph.hpp>
#include <catch_shim.hpp>

using namespace autopar;

namespace {

// 2 -> 0 -> 1, 2 -> 1 twice, 3 alone
const std::vector<archetypes::Ends> kEdges{{2, 0}, {0, 1}, {2, 1}, {2, 1}};

}  // namespace

TEST_CASE("graph algorithms: most need DirectedGraph alone", "[graph][archetype]") {
  const archetypes::Directed graph(4, kEdges);
  const std::vector order{NodeId(2), NodeId(0), NodeId(1), NodeId(3)};
  CHECK(topological_order(graph) == order);
  CHECK(positions_in(graph, order) == std::vector<std::size_t>{1, 2, 0, 3});
  CHECK(is_acyclic(graph));
  CHECK(reachable_from(graph, NodeSet(4, {NodeId(0)})) == NodeSet(4, {NodeId(0), NodeId(1)}));
  CHECK(TransitiveClosure(graph).reaches(NodeId(2), NodeId(1)));
  CHECK_FALSE(is_convex(graph, NodeSet(4, {NodeId(2), NodeId(1)})));
  CHECK_FALSE(ConvexityTester(graph)(std::vector{NodeId(2), NodeId(1)}));
  CHECK(strongly_connected_components(graph).block_count() == 4);
  CHECK(quotient(graph, Partition::singletons(4)).edge_count() == 3);
  CHECK(acyclic_coarsening(graph, {{NodeId(2), NodeId(1)}}).block_count() == 2);
  CHECK(count_downsets(graph, 100) == 8u);
  CHECK(enumerate_downsets(graph, 100)->size() == 8);
}

TEST_CASE("graph algorithms: backward ones need BidirectionalGraph only", "[graph][archetype]") {
  const archetypes::Bidirectional graph(4, kEdges);
  CHECK(acyclic_splitting(graph, {0, 0, 0, -1}).size() == 2);
  CHECK(reaching(graph, NodeSet(4, {NodeId(0)})) == NodeSet(4, {NodeId(0), NodeId(2)}));
  CHECK(convex_closure(graph, NodeSet(4, {NodeId(2), NodeId(1)})) == NodeSet(4, {NodeId(0), NodeId(1), NodeId(2)}));
  const auto path = critical_path(
      graph, [](NodeId) { return archetypes::Cost(1); }, [](EdgeId) { return archetypes::Cost(1); });
  CHECK((path.cost == archetypes::Cost(5)));
  CHECK(path.nodes == std::vector{NodeId(2), NodeId(0), NodeId(1)});
}
