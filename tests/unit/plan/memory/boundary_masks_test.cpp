#include <autopar/plan/memory/boundary_masks.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/testing/random_models.hpp>

#include "baselines/boundary_of.hpp"

using namespace autopar;

TEST_CASE("BoundaryMasks: traffic equals the sum over edges", "[equality]") {
  int differing = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    testing::Dice dice(seed + 400'000);
    ModelProfile model = testing::random_model(dice, 10);
    for (const EdgeId edge : model.graph.edges()) model.graph[edge].kept = dice.chance(20);
    // A value that callers get as well, and users' graphs whose values have no names.
    if (dice.chance(30)) model.outputs.push_back({100, {dice(1, 9) * 100.0, 0}, NodeId(0), dice.chance(50)});
    if (dice.chance(10)) {
      for (const EdgeId edge : model.graph.edges()) model.graph[edge].value = -1;
    }
    const RooflineCost cost(testing::small_cluster(2));
    const Workload work = make_workload(model, cost);
    const detail::BoundaryMasks masks(work);
    for (int draw = 0; draw < 20; ++draw) {
      detail::NodeMask stage = 0;
      for (const NodeId node : work.graph.nodes()) stage |= dice.chance(50) ? detail::bit(node) : 0;
      const auto by_edges = detail::boundary_of(work, [&](NodeId node) { return (stage & detail::bit(node)) != 0; });
      REQUIRE(masks(stage) == by_edges);
      differing += by_edges == detail::Boundary{} ? 0 : 1;
      for (const std::int64_t slice : {1, 7}) REQUIRE(masks.most().bytes(slice, 2, 3) >= by_edges.bytes(slice, 2, 3));
    }
  }
  CHECK(differing > 10'000);
}
