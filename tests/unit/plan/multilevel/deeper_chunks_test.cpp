#include <autopar/plan/multilevel/deeper_chunks.hpp>

#include <catch_shim.hpp>

#include <algorithm>
#include <vector>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/search/uniform_staging.hpp>
#include <autopar/testing/random_models.hpp>

#include "unit/plan/whole_memory_request.hpp"

using namespace autopar;
using testing::Dice;

namespace {

/// Stages that come round the positions, all nodes in the first of them.
Staging looped(const Workload& work, int positions, int chunks, int replicas, int microbatches) {
  Staging staging{std::vector<int>(work.graph.node_count(), 0), {}, microbatches, ScheduleKind::kInterleaved};
  for (int s = 0; s < positions * chunks; ++s) {
    staging.position_of.push_back(s % positions);
    staging.replicas.push_back(replicas);
  }
  return staging;
}

std::vector<double> seconds_of_positions(const Workload& work, const Staging& staging) {
  std::vector<double> seconds(staging.replicas_of_positions().size(), 0);
  for (const NodeId node : work.graph.nodes()) {
    const NodeCost cost = work.node_cost(node, 1);
    seconds[static_cast<std::size_t>(staging.position(staging.stage_of[node.index()]))] +=
        (cost.forward + cost.backward).value();
  }
  return seconds;
}

}  // namespace

TEST_CASE("BalancedChunks: positions differ by two nodes, stages stay convex", "[laws]") {
  for (int nodes = 9; nodes < 60; ++nodes) {
    for (const int positions : {2, 3, 4}) {
      for (int chunks = 1; chunks * positions <= nodes; ++chunks) {
        CAPTURE(nodes, positions, chunks);
        const ModelProfile model = testing::chain(nodes, 1e9, 1000, 100);
        const Cluster cluster = testing::small_cluster(positions);
        const RooflineCost cost(cluster);
        const Workload work = make_workload(model, cost);
        const Constraints constraints = resolve(test::whole_memory_request(positions), work, cluster);
        const StepObjective objective(work, cluster, constraints);
        const Staging staging = detail::balanced_chunks(objective, looped(work, positions, chunks, 1, positions));
        REQUIRE(std::ranges::is_sorted(staging.stage_of));
        REQUIRE(staging.stage_of.back() + 1 == positions * chunks);
        for (int s = 0; s < staging.stages(); ++s) REQUIRE(std::ranges::count(staging.stage_of, s) > 0);
        const auto seconds = seconds_of_positions(work, staging);
        const double node = (work.node_cost(NodeId(0), 1).forward + work.node_cost(NodeId(0), 1).backward).value();
        const auto [least, most] = std::ranges::minmax(seconds);
        CHECK(most - least <= 2 * node * (1 + 1e-9));
      }
    }
  }
}

TEST_CASE("BalancedChunks: random graphs keep the order of their stages", "[laws]") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 77'000);
    const ModelProfile model = testing::random_model(dice, 14);
    const Cluster cluster = testing::small_cluster(4);
    const RooflineCost cost(cluster);
    const Workload work = make_workload(model, cost);
    const Constraints constraints = resolve(test::whole_memory_request(8), work, cluster);
    const StepObjective objective(work, cluster, constraints);
    const int positions = dice(1, 3), nodes = static_cast<int>(work.graph.node_count());
    if (positions > nodes) continue;
    Staging start = looped(work, positions, dice(1, nodes / positions), 1, dice(1, 4));
    if (positions == 1 && start.stages() == 1) continue;
    const Staging staging = detail::balanced_chunks(objective, start);
    for (const EdgeId edge : work.graph.edges()) {
      CHECK(staging.stage_of[work.graph.source(edge).index()] <= staging.stage_of[work.graph.target(edge).index()]);
    }
    for (int s = 0; s < staging.stages(); ++s) CHECK(std::ranges::count(staging.stage_of, s) > 0);
  }
}

TEST_CASE("DeeperChunks: divisions are faster, meet the constraints, and are as predicted", "[laws]") {
  int divided = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 78'000);
    const ModelProfile model = testing::chain(dice(12, 40), dice(1, 50) * 1e6, dice(1, 9) * 1000, 100);
    const Cluster cluster = testing::small_cluster(dice(2, 6), Bytes(dice(200, 4000) * 1000));
    const RooflineCost cost(cluster);
    const Workload work = make_workload(model, cost);
    PlanRequest request = test::whole_memory_request(dice(4, 48));
    if (dice.chance(30)) request.options.stages = dice(1, cluster.devices);
    const Constraints constraints = resolve(request, work, cluster);
    const StepObjective objective(work, cluster, constraints);
    const SearchResult found = UniformStaging{}.search(objective);
    const auto ranked = found.candidates.ranked();
    for (const Candidate& deeper : detail::DeeperChunks(objective).of(ranked)) {
      CHECK(meets(constraints, work, deeper.staging));
      CHECK(deeper.staging.stages() >= static_cast<int>(deeper.staging.replicas_of_positions().size()));
      if (!traits_of(deeper.staging.schedule).orders_in_plan)
        CHECK(objective(deeper.staging).step == deeper.terms.step);
      ++divided;
    }
  }
  CHECK(divided > 30);
}

TEST_CASE("DeeperChunks: a deep model gets a shorter step than without", "[equality]") {
  const ModelProfile model = testing::chain(200, 4e8, 4000, 100);
  const Cluster cluster = testing::small_cluster(4, Bytes(1 << 22));
  PlanRequest request = test::whole_memory_request(16);
  const Plan deeper = plan_with_defaults(model, cluster, request);
  request.budget.deepened = 0;
  const Plan shallow = plan_with_defaults(model, cluster, request);
  CHECK(deeper.step <= shallow.step);
  CHECK(deeper.stages.size() >= shallow.stages.size());
}
