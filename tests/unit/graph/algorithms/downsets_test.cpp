#include <autopar/graph/algorithms/downsets.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <catch_shim.hpp>
#include <unit/graph/random_graphs.hpp>

using namespace autopar;
using namespace autopar::random_graphs;

namespace {

std::vector<NodeSet> brute_force_downsets(const PlainGraph& graph) {
  std::vector<NodeSet> found;
  for (std::size_t mask = 0; mask < (std::size_t{1} << graph.node_count()); ++mask) {
    const auto inside = [&](NodeId node) { return ((mask >> node.index()) & 1) != 0; };
    const bool closed = std::ranges::all_of(
        graph.edges(), [&](EdgeId edge) { return inside(graph.source(edge)) || !inside(graph.target(edge)); });
    if (!closed) continue;
    NodeSet set(graph.node_count());
    for (const NodeId node : graph.nodes()) {
      if (inside(node)) set.insert(node);
    }
    found.push_back(set);
  }
  return found;
}

PlainGraph antichain(std::size_t nodes) {
  PlainGraph graph;
  for (std::size_t i = 0; i < nodes; ++i) graph.add_node();
  return graph;
}

constexpr auto keep_going = [](NodeId, DownsetId) { return true; };
constexpr auto ignore = [](NodeId) {};

}  // namespace

TEST_CASE("enumerate_downsets: exactly the downsets, subsets first", "[graph]") {
  std::mt19937 random(12);
  for (int i = 0; i < 150; ++i) {
    const PlainGraph graph = random_dag(random, 9);
    const auto expected = brute_force_downsets(graph);
    const auto lattice = enumerate_downsets(graph, 1000);
    REQUIRE(lattice.has_value());
    REQUIRE(lattice->size() == expected.size());
    CHECK(lattice->node_count() == graph.node_count());
    CHECK(count_downsets(graph, 1000) == expected.size());
    for (const NodeSet& set : expected) {
      const auto id = lattice->find(set);
      REQUIRE(id.has_value());
      CHECK(lattice->members(*id) == set);
      CHECK(lattice->cardinality(*id) == set.size());
    }
    CHECK(lattice->members(lattice->empty_set()).empty());
    CHECK(lattice->members(lattice->all_nodes()) == NodeSet::all(graph.node_count()));
    for (std::size_t a = 0; a < lattice->size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        CHECK_FALSE(lattice->members(DownsetId::of(a)).is_subset_of(lattice->members(DownsetId::of(b))));
      }
    }
  }
}

TEST_CASE("DownsetLattice: covers are all downsets of one node more", "[graph]") {
  std::mt19937 random(13);
  for (int i = 0; i < 150; ++i) {
    const PlainGraph graph = random_dag(random, 9);
    const auto lattice = *enumerate_downsets(graph, 1000);
    for (std::size_t k = 0; k < lattice.size(); ++k) {
      const NodeSet set = lattice.members(DownsetId::of(k));
      std::map<NodeId, DownsetId> expected, actual;
      for (const NodeId node : graph.nodes()) {
        NodeSet more = set;
        if (!more.insert(node)) continue;
        if (const auto id = lattice.find(more)) expected.emplace(node, *id);
      }
      for (const auto& cover : lattice.covers(DownsetId::of(k)))
        CHECK(actual.emplace(cover.added, cover.result).second);
      CHECK(actual == expected);
    }
  }
}

TEST_CASE("DownsetLattice: find returns nothing for other sets", "[graph]") {
  const auto lattice = *enumerate_downsets(chain(3), 10);
  CHECK_FALSE(lattice.find(NodeSet(3, {NodeId(1)})));
  CHECK_FALSE(lattice.find(NodeSet(3, {NodeId(0), NodeId(2)})));
  CHECK_FALSE(lattice.find(NodeSet(4, {NodeId(0)})));
  CHECK(lattice.find(NodeSet(3, {NodeId(0), NodeId(1)})) == DownsetId(2));
}

TEST_CASE("for_each_superset: visits each once, with the difference", "[graph]") {
  std::mt19937 random(14);
  for (int i = 0; i < 60; ++i) {
    const PlainGraph graph = random_dag(random, 8);
    const auto lattice = *enumerate_downsets(graph, 1000);
    const auto paths = brute_force_paths(graph);
    for (std::size_t k = 0; k < lattice.size(); ++k) {
      const DownsetId from = DownsetId::of(k);
      const NodeSet base = lattice.members(from);
      NodeSet difference(graph.node_count());
      std::vector<int> visits(lattice.size(), 0);
      lattice.for_each_superset(
          from,
          [&](NodeId node, DownsetId id) {
            CHECK(difference.insert(node));
            CHECK(lattice.members(id) == (base | difference));
            CHECK_FALSE(difference.intersects(base));
            std::size_t mask = 0;
            for (const NodeId member : difference) mask |= std::size_t{1} << member.index();
            CHECK(brute_force_convex(paths, mask));
            ++visits[id.index()];
            return true;
          },
          [&](NodeId node) { CHECK(difference.erase(node)); });
      CHECK(difference.empty());
      for (std::size_t to = 0; to < lattice.size(); ++to) {
        CHECK(visits[to] == (to != k && base.is_subset_of(lattice.members(DownsetId::of(to))) ? 1 : 0));
      }
    }
  }
}

TEST_CASE("for_each_superset: pruning by a monotone bound is lossless", "[graph]") {
  std::mt19937 random(15);
  for (int i = 0; i < 60; ++i) {
    const PlainGraph graph = random_dag(random, 8);
    const auto lattice = *enumerate_downsets(graph, 1000);
    for (std::size_t most = 0; most <= graph.node_count(); ++most) {
      std::size_t size = 0, within = 0, entered = 0;
      lattice.for_each_superset(
          lattice.empty_set(),
          [&](NodeId, DownsetId) {
            ++entered;
            within += ++size <= most;
            return size < most;
          },
          [&](NodeId) { --size; });
      std::size_t expected = 0;
      for (std::size_t id = 1; id < lattice.size(); ++id) expected += lattice.cardinality(DownsetId::of(id)) <= most;
      CHECK(within == expected);
      CHECK(size == 0);
      CHECK((most == 0 || entered == expected));
    }
  }
}

TEST_CASE("enumerate_downsets: the limit is exact", "[graph]") {
  std::mt19937 random(16);
  for (int i = 0; i < 100; ++i) {
    const PlainGraph graph = random_dag(random, 8);
    const std::size_t all = brute_force_downsets(graph).size();
    CHECK(count_downsets(graph, all) == all);
    CHECK(enumerate_downsets(graph, all)->size() == all);
    CHECK_FALSE(count_downsets(graph, all - 1));
    CHECK_FALSE(enumerate_downsets(graph, all - 1));
  }
}

TEST_CASE("enumerate_downsets: empty graph and chain", "[graph]") {
  const auto nothing = *enumerate_downsets(PlainGraph(), 1);
  CHECK(nothing.size() == 1);
  CHECK(nothing.empty_set() == nothing.all_nodes());
  CHECK(nothing.covers(nothing.empty_set()).empty());
  nothing.for_each_superset(
      nothing.empty_set(), [](NodeId, DownsetId) -> bool { throw 0; }, ignore);

  const auto line = *enumerate_downsets(chain(100'000), 100'001);
  CHECK(line.size() == 100'001);
  CHECK(line.cardinality(line.all_nodes()) == 100'000);
  CHECK(line.covers(DownsetId(5)).size() == 1);
  CHECK(line.covers(DownsetId(5)).front().result == DownsetId(6));
  std::size_t visits = 0;
  line.for_each_superset(
      line.empty_set(), [&](NodeId, DownsetId) { return ++visits, true; }, ignore);
  CHECK(visits == 100'000);
}

TEST_CASE("enumerate_downsets: gives up early where there are too many", "[graph]") {
  CHECK_FALSE(enumerate_downsets(antichain(100'000), kMaxDownsets));
  CHECK(enumerate_downsets(antichain(10), 1024)->size() == 1024);
  CHECK_FALSE(enumerate_downsets(antichain(10), 1023));

  PlainGraph fan = antichain(100'000);
  for (int i = 1; i < 100'000; ++i) fan.add_edge(NodeId(0), NodeId(i));
  CHECK_FALSE(enumerate_downsets(fan, 1'000'000));

  PlainGraph two_chains = chain(50'000);
  for (int i = 0; i < 50'000; ++i) {
    const NodeId node = two_chains.add_node();
    if (i > 0) two_chains.add_edge(NodeId(node.value() - 1), node);
  }
  CHECK_FALSE(enumerate_downsets(two_chains, 300'000));
  CHECK_FALSE(count_downsets(two_chains, 300'000));
}

TEST_CASE("enumerate_downsets: cycles and too large limits are errors", "[graph]") {
  PlainGraph loop;
  const NodeId node = loop.add_node();
  loop.add_edge(node, node);
  CHECK_THROWS_AS(enumerate_downsets(loop, 10), InvalidArgument);
  CHECK_THROWS_AS(count_downsets(loop, 10), InvalidArgument);
  CHECK_THROWS_WITH(enumerate_downsets(chain(2), kMaxDownsets + 1), Catch::Matchers::ContainsSubstring("kMaxDownsets"));
  const auto lattice = *enumerate_downsets(chain(2), 10);
  lattice.for_each_superset(lattice.all_nodes(), keep_going, ignore);
}
