#include <autopar/plan/report/step_timeline.hpp>

#include <catch_shim.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/testing/random_models.hpp>

using namespace autopar;
using testing::Dice;

namespace {

constexpr std::array kNotPlain{ScheduleKind::kInterleaved, ScheduleKind::kZbH1, ScheduleKind::kZbV,
                               ScheduleKind::kSynthesised};

}  // namespace

TEST_CASE("timeline_of: equals the planner's prediction", "[report]") {
  int compared = 0;
  for (int seed = 0; seed < 120; ++seed) {
    Dice dice(static_cast<std::uint64_t>(seed) + 4000);
    const ModelProfile model = testing::random_model(dice, 7);
    const Cluster cluster = testing::small_cluster(dice(1, 5), Bytes(64 << 20));
    PlanRequest request;
    request.batch = dice(1, 30);
    const Plan plan = plan_with_defaults(model, cluster, request);
    const auto timeline = timeline_of(plan, model, ProfiledCost(cluster, {}));
    CAPTURE(seed);
    REQUIRE(timeline.step == plan.step);
    double waiting = 0;
    int used = 0;
    for (const auto& stage : plan.stages) {
      for (const Rank rank : stage.mesh.ranks()) waiting += timeline.waiting(rank), ++used;
    }
    CHECK(waiting / used == Approx(plan.bubble).margin(1e-12));
    for (const auto& bar : timeline.bars) {
      REQUIRE(bar.begin >= Seconds{});
      REQUIRE(bar.begin <= bar.end);
      REQUIRE(bar.end <= timeline.step);
    }
    ++compared;
  }
  CHECK(compared == 120);
}

TEST_CASE("timeline_of: exact for chunked, split, memory-saving plans", "[report]") {
  std::map<std::string, int> met;
  for (int seed = 0; seed < 90; ++seed) {
    Dice dice(static_cast<std::uint64_t>(seed) + 9000);
    ModelProfile model = testing::random_model(dice, 10);
    const auto mixes = [&](NodeId n) { return model.graph[n].whole_batch || model.graph[n].totals > Bytes(0); };
    if (std::ranges::any_of(model.graph.nodes(), mixes)) continue;
    model.loss_mode = true;
    model.outputs[0].bytes = {0, 8};
    const Cluster cluster = testing::small_cluster(dice(2, 5), Bytes(64 << 20));
    PlanRequest request;
    request.batch = dice(1, 30);
    request.runtime = runtime_capabilities();
    request.options.zero = dice(0, 3);
    request.options.recompute = dice.chance(50) ? Recompute::kAlways : Recompute::kNever;
    request.options.offload = dice.chance(30) ? Offload::kOptimizer : Offload::kNone;
    request.options.schedule = request.runtime.schedules[static_cast<std::size_t>(dice(2, 5))];
    std::optional<Plan> plan;
    try {
      plan = plan_with_defaults(model, cluster, request);
    } catch (const InfeasiblePlan&) {  // fewer operators than the schedule has stages
      continue;
    }
    const auto timeline = timeline_of(*plan, model, ProfiledCost(cluster, {}));
    CAPTURE(seed, to_text(*plan));
    REQUIRE(timeline.step == plan->step);
    std::map<BarKind, int> kinds;
    std::vector<Seconds> busy(timeline.busy.size()), free_at(busy);
    for (const auto& bar : timeline.bars) {
      ++kinds[bar.kind];
      if (!computes(bar.kind)) continue;
      REQUIRE(bar.begin >= free_at[bar.rank.index()] - Seconds(1e-15));  // a rank does one thing at a time
      free_at[bar.rank.index()] = bar.end;
      busy[bar.rank.index()] += bar.end - bar.begin;
    }
    double waiting = 0;
    int used = 0;
    for (std::size_t r = 0; r < busy.size(); ++r) {
      CHECK(busy[r].value() == Approx(timeline.busy[r].value()));
      if (timeline.stages[r].empty()) continue;
      ++used;
      waiting += timeline.waiting(Rank::of(r));
      if (timeline.stages[r].size() > 1) ++met["several stages"];
    }
    CHECK(waiting / used == Approx(plan->bubble).margin(1e-12));
    CHECK(kinds[BarKind::kBackwardInput] == kinds[BarKind::kBackwardWeight]);
    if (kinds[BarKind::kBackwardInput] > 0) ++met["parted"];
    ++met[name_of(plan->schedule)];
  }
  CHECK(met["several stages"] > 50);
  CHECK(met["parted"] > 20);
  for (const ScheduleKind schedule : kNotPlain) CHECK(met[name_of(schedule)] > 5);
}
