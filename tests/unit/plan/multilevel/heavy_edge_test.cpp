#include <autopar/plan/multilevel/heavy_edge.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/testing/coarsening_laws.hpp>
#include <autopar/testing/random_models.hpp>

using namespace autopar;

TEST_CASE("HeavyEdge, NoCoarsening: obey the coarsening laws", "[laws]") {
  testing::check_coarsening_laws(HeavyEdge{});
  testing::check_coarsening_laws(HeavyEdge{.max_blocks = 12, .max_tails = 500}, {.first_seed = 200});
  testing::check_coarsening_laws(HeavyEdge{.max_blocks = 1});
  testing::check_coarsening_laws(NoCoarsening{});
}

TEST_CASE("HeavyEdge: few blocks and cuts, blocks cost as their nodes", "[laws]") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    testing::Dice dice(seed + 40);
    const ModelProfile model = testing::random_model(dice, 120);
    const Cluster cluster = testing::small_cluster(4);
    const RooflineCost cost(cluster);
    const Workload work = make_workload(model, cost);
    const HeavyEdge policy{.max_blocks = 12, .max_tails = 500};
    const Workload coarse = contracted(work, policy.coarsen(work, 4, dice(1, 6)));
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

TEST_CASE("HeavyEdge: a small graph is unchanged") {
  const ModelProfile model = testing::chain(20, 1e5, 100, 40);
  const RooflineCost cost(testing::small_cluster(4));
  const Workload work = make_workload(model, cost);
  CHECK(HeavyEdge{}.coarsen(work, 4, 1).block_count() == 20);
  CHECK(HeavyEdge{.max_blocks = 7}.coarsen(work, 4, 1).block_count() == 7);
  CHECK(HeavyEdge{.max_blocks = 7}.coarsen(work, 4, 9).block_count() == 9);
}
