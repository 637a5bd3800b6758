#include <autopar/plan/step/lower_bound.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/model/segments.hpp>
#include <autopar/plan/search/rest_bottleneck.hpp>
#include <autopar/testing/random_models.hpp>

#include "contending_cost.hpp"
#include "unit/plan/random_stagings.hpp"

using namespace autopar;
using testing::Dice;

TEST_CASE("LowerBound: never above the step of a staging", "[laws]") {
  double tightness = 0;
  int stagings = 0, judged = 0, recomputed = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 70'000);
    ModelProfile model = testing::random_model(dice, 9);
    const bool saves = dice.chance(50);
    if (saves) {
      for (const NodeId node : model.graph.nodes()) model.graph[node].saved.per_sample *= 20;
    }
    Cluster cluster = testing::small_cluster(dice(1, 6));
    if (dice.chance(50)) cluster.host = testing::small_host(Bytes(1 << 30));
    const test::ContendingCost cost(cluster, test::random_contention(Dice(seed + 31'000), cluster));
    Workload work = make_workload(model, cost);
    Constraints constraints;
    constraints.world = cluster.devices;
    constraints.batch = dice(1, 30);
    constraints.memory = cluster.device.memory;
    if (seed % 2 == 0) constraints.buckets.size = Bytes(1000 * (1 + static_cast<std::int64_t>(seed % 20)));
    if (saves) {
      constraints.memory = Bytes(dice(50, 600) * 1000);
      constraints.recompute = static_cast<Recompute>(dice(0, 2));
      constraints.zero_levels.clear();
      for (int level = dice(0, 1); level <= 3; level += dice(1, 3)) constraints.zero_levels.push_back(level);
      work.segment_of = recompute_segments(work, constraints, dice(1, 8));
      if (cluster.host) constraints.host_memory = Bytes(dice(50, 2000) * 1000);
      if (cluster.host && dice.chance(70)) constraints.offloads.push_back(Offload::kOptimizer);
      if (dice.chance(30)) constraints.offloads = {Offload::kOptimizer};
      constraints.gradient_copies = dice(1, 2);
    }
    if (dice.chance(30)) {
      constraints.buckets.reduce_dtype = ReduceDtype::kBf16;
      for (ParameterProfile& parameter : work.parameters) parameter.elements = parameter.bytes.value() / 4;
    }
    const StepObjective objective(work, cluster, constraints);
    const Staging staging = test::random_staging(dice, work, constraints.world);
    const StepTerms terms = objective(staging);
    const double step = terms.step.value();

    auto tables = detail::StageTable::make(objective, 100'000);
    REQUIRE(tables);
    detail::LowerBound bound(*tables, objective, staging.microbatches, staging.schedule);
    const double slack = 1 + 1e-9;
    double before = bound({}, constraints.world);
    REQUIRE(before <= step * slack);
    auto rest = detail::RestBottleneck::make(*tables, objective, staging.microbatches, staging.schedule, 1'000'000'000);
    REQUIRE(rest);
    // What does not fit, or divides what mixes samples, is no plan, so that the table may leave it out.
    bool legal = objective.fits(terms);
    for (const NodeId node : work.graph.nodes()) {
      const auto stage = static_cast<std::size_t>(staging.stage_of[node.index()]);
      legal = legal && !(work.graph[node].whole_batch && staging.replicas[stage] > 1);
    }
    judged += legal ? 1 : 0;
    const auto rest_is_admissible = [&](DownsetId after, int ranks, int later) {
      CAPTURE(ranks, later);
      if (legal) REQUIRE((*rest)(after, ranks, later) <= step * slack);
    };
    rest_is_admissible(tables->tails().empty_set(), constraints.world, 0);
    std::vector<detail::ChosenStage> chosen;
    int used = 0;
    const auto stages = test::stages_of(tables->tails(), staging);
    for (std::size_t s = stages.size(); s-- > 0;) {
      REQUIRE(stages[s].to.valid());
      const bool only = stages.size() == 1;
      const int later = static_cast<int>(chosen.size());
      const double recompute = tables->recomputing_to_fit(
          stages[s], peak_in_flight(staging.schedule, work.loss_mode, 0, later + 1, staging.microbatches),
          staging.microbatches, staging.replicas[s], only);
      if (legal) REQUIRE(recompute < std::numeric_limits<double>::infinity());
      recomputed += legal && recompute > 0 ? 1 : 0;
      // What cannot fit is no plan; how long it takes is bounded all the same.
      const double least = recompute < std::numeric_limits<double>::infinity() ? recompute : 0;
      chosen.push_back(bound.choose({1, &*tables}, stages[s], staging.replicas[s], only, legal ? least : 0, chosen));
      used += staging.replicas[s];
      before = bound(chosen, constraints.world - used);
      REQUIRE(before <= step * slack);
      rest_is_admissible(stages[s].to, constraints.world - used, static_cast<int>(chosen.size()));
    }
    tightness += step > 0 ? before / step : 1;
    ++stagings;
  }
  CHECK(judged > 1000);
  CHECK(recomputed > 50);
  CHECK(tightness / stagings > 0.6);  // a bound of 0 would be admissible too, and useless
}

TEST_CASE("LowerBound: counts a message where a path leaves a stage") {
  const ModelProfile model = testing::chain(3, 1000, 0, 40);
  const Cluster cluster = testing::small_cluster(3);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  Constraints constraints;
  constraints.world = 3;
  constraints.batch = 3;
  constraints.memory = cluster.device.memory;
  const StepObjective objective(work, cluster, constraints);
  auto tables = detail::StageTable::make(objective, 1000);
  REQUIRE(tables);
  const double message = cost.least_transfer(Bytes(40)).value();  // of one sample
  CHECK(tables->least_message() == message);
  detail::LowerBound bound(*tables, objective, 1, ScheduleKind::kOneFOneB);
  std::vector<detail::ChosenStage> chosen;
  DownsetId from = tables->tails().empty_set();
  double computes = 0;
  for (const NodeId node : {NodeId(2), NodeId(1), NodeId(0)}) {
    const DownsetId to = tables->tails().covers(from).front().result;
    chosen.push_back(bound.choose({1, &*tables}, {from, to, detail::bit(node)}, 1, false, 0, chosen));
    from = to;
    const NodeCost each = work.node_cost(node, 3);
    computes += (each.forward + each.backward).value();
  }
  CHECK(bound(chosen, 0) >= (computes + 4 * message) * (1 - 1e-9));
  CHECK(bound(chosen, 0) <= objective({{0, 1, 2}, {1, 1, 1}, 1, ScheduleKind::kOneFOneB}).step.value());
}
