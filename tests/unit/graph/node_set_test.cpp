#include <autopar/graph/node_set.hpp>

#include <random>
#include <ranges>
#include <set>
#include <unordered_set>
#include <vector>

#include <autopar/graph/concepts.hpp>
#include <catch_shim.hpp>

using namespace autopar;

static_assert(RangeOf<NodeSet, NodeId> && RangeOf<const NodeSet&, NodeId>);

TEST_CASE("NodeSet: behaves as std::set for any universe size", "[graph]") {
  std::mt19937 random(11);
  for (const std::size_t universe : {0u, 1u, 63u, 64u, 65u, 128u, 200u}) {
    NodeSet a(universe), b(universe);
    std::set<NodeId> model_a, model_b;
    for (std::size_t step = 0; universe > 0 && step < 3 * universe; ++step) {
      const NodeId node = NodeId::of(random() % universe);
      switch (random() % 3) {
        case 0:
          CHECK(a.insert(node) == model_a.insert(node).second);
          break;
        case 1:
          CHECK(b.insert(node) == model_b.insert(node).second);
          break;
        default:
          CHECK(a.erase(node) == (model_a.erase(node) == 1));
      }
    }
    const auto same = [universe](const NodeSet& set, const std::set<NodeId>& model) {
      CHECK(std::vector<NodeId>(set.begin(), set.end()) == std::vector<NodeId>(model.begin(), model.end()));
      CHECK(set.size() == model.size());
      CHECK(set.empty() == model.empty());
      for (std::size_t i = 0; i < universe + 70; ++i)
        CHECK(set.contains(NodeId::of(i)) == model.contains(NodeId::of(i)));
    };
    same(a, model_a);
    std::set<NodeId> both, either = model_a, only_a;
    for (const NodeId node : model_a) (model_b.contains(node) ? both : only_a).insert(node);
    either.insert(model_b.begin(), model_b.end());
    same(a | b, either);
    same(a & b, both);
    same(a - b, only_a);
    CHECK(a.intersects(b) == !both.empty());
    CHECK((a & b).is_subset_of(a));
    CHECK(a.is_subset_of(b) == only_a.empty());
    CHECK((a | b).is_subset_of(NodeSet::all(universe)));
    CHECK(NodeSet::all(universe).size() == universe);
    a.clear();
    CHECK(a == NodeSet(universe));
  }
}

TEST_CASE("NodeSet: equality and hash include the universe", "[graph]") {
  CHECK(NodeSet(10, {NodeId(1), NodeId(9)}) == NodeSet(10, {NodeId(9), NodeId(1)}));
  CHECK(NodeSet(10, {NodeId(1)}) != NodeSet(11, {NodeId(1)}));
  std::unordered_set<NodeSet> sets;
  for (int bits = 0; bits < 1024; ++bits) {
    NodeSet set(70);
    for (int i = 0; i < 10; ++i) {
      if ((bits >> i) & 1) set.insert(NodeId(i * 7));
    }
    CHECK(sets.insert(set).second);
    CHECK_FALSE(sets.insert(set).second);
  }
  CHECK(sets.size() == 1024);
}

TEST_CASE("NodeSet: nodes and sets of other graphs are refused", "[graph]") {
  NodeSet set(64);
  CHECK_THROWS_WITH(set.insert(NodeId(64)), "NodeSet: node 64 is not one of the 64 nodes of its graph");
  CHECK_THROWS_AS(set.insert(NodeId::none()), InvalidArgument);
  CHECK_THROWS_AS(NodeSet(2, {NodeId(2)}), InvalidArgument);
  CHECK_FALSE(set.contains(NodeId::none()));
  CHECK_FALSE(set.erase(NodeId::none()));
  CHECK_THROWS_WITH(set |= NodeSet(65), "NodeSet: sets over 64 and over 65 nodes belong to different graphs");
  CHECK_THROWS_AS(set.is_subset_of(NodeSet(65)), InvalidArgument);
  CHECK_THROWS_AS(set.intersects(NodeSet(63)), InvalidArgument);
}
