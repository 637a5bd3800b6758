#include <autopar/plan/multilevel/heavy_edge.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>

#include "unit/plan/random_models.hpp"

using namespace autopar;

TEST_CASE("coarsening keeps order, costs and every node", "[laws]") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    test::Dice dice(seed + 40);
    const ModelProfile model = test::random_model(dice, 120);
    const Cluster cluster = test::small_cluster(4);
    const RooflineCost cost(cluster);
    const Workload work = make_workload(model, cost);
    const HeavyEdge policy{.max_blocks = 12, .max_tails = 500};
    const int least = dice(1, 6);
    const Partition blocks = policy.coarsen(work, 4, least);
    CHECK(blocks == policy.coarsen(work, 4, least));
    const int nodes = static_cast<int>(work.graph.node_count());
    CHECK(static_cast<int>(blocks.block_count()) >= std::min(least, nodes));
    const Workload coarse = contracted(work, blocks);  // throws if blocks depend on one another in a circle
    CHECK(count_downsets(coarse.graph, 501).value_or(501) <= 500);
    CHECK(coarse.graph.node_count() <= 12);
    const auto total = [](const Workload& w) {
      NodeCost sum;
      for (const NodeCost& c : w.node_costs(3)) {
        sum.forward += c.forward;
        sum.backward += c.backward;
        sum.saved += c.saved;
      }
      return sum;
    };
    CHECK(total(coarse).forward.value() == Approx(total(work).forward.value()));
    CHECK(total(coarse).backward.value() == Approx(total(work).backward.value()));
    CHECK(total(coarse).saved == total(work).saved);
  }
}

TEST_CASE("a small graph is left alone") {
  const ModelProfile model = test::chain(20, 1e5, 100, 40);
  const RooflineCost cost(test::small_cluster(4));
  const Workload work = make_workload(model, cost);
  CHECK(HeavyEdge{}.coarsen(work, 4, 1).block_count() == 20);
  CHECK(HeavyEdge{.max_blocks = 7}.coarsen(work, 4, 1).block_count() == 7);
  CHECK(HeavyEdge{.max_blocks = 7}.coarsen(work, 4, 9).block_count() == 9);
}
