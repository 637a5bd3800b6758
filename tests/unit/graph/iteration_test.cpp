#include <autopar/graph/iteration.hpp>

#include <algorithm>
#include <iterator>
#include <ranges>

#include <autopar/graph/graph.hpp>
#include <catch_shim.hpp>

using namespace autopar;

static_assert(std::ranges::random_access_range<IdRange<NodeId>> && std::ranges::view<IdRange<NodeId>>);
static_assert(std::ranges::sized_range<IdRange<NodeId>> && std::ranges::common_range<IdRange<NodeId>>);
static_assert(std::ranges::forward_range<decltype(Graph<int, int>().successors(NodeId(0)))>);
static_assert(std::ranges::forward_range<decltype(Graph<int, int>().predecessors(NodeId(0)))>);

TEST_CASE("ids are read at any position", "[graph]") {
  const auto ids = id_range<NodeId>(4);
  const auto begin = ids.begin(), end = ids.end();
  CHECK(ids.size() == 4);
  CHECK(end - begin == 4);
  CHECK((begin < end && begin + 4 == end && end - 4 == begin && 4 + begin == end));
  CHECK(begin[3] == NodeId(3));
  CHECK(*std::ranges::lower_bound(ids, NodeId(2)) == NodeId(2));
  auto at = end;
  CHECK(*--at == NodeId(3));
  CHECK(*at-- == NodeId(3));
  CHECK(*at++ == NodeId(2));
  CHECK(*(at -= 2) == NodeId(1));
  CHECK((id_range<NodeId>(0).empty() && !ids.empty()));
}
