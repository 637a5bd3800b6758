#include <autopar/plan/remedy.hpp>

#include <catch_shim.hpp>

#include <autopar/plan/planner.hpp>

#include "random_models.hpp"

using namespace autopar;
using test::Dice;

namespace {

bool fits(const ModelProfile& model, Cluster cluster, const PlanRequest& request) {
  cluster.devices = std::max(cluster.devices, request.world);
  cluster.levels.back().span = std::max(cluster.levels.back().span, request.world);
  Planner<> planner;
  planner.staging.max_states = 20'000;
  try {
    (void)planner.plan(model, cluster, request);
    return true;
  } catch (const InfeasiblePlan&) {
    return false;
  }
}

}  // namespace

TEST_CASE("each change that an infeasible plan suggests makes it fit", "[laws]") {
  int infeasible = 0, memory = 0, ranks = 0, microbatches = 0, factors = 0, stages = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 333);
    const ModelProfile model = test::chain(dice(2, 9), 1e5, dice(10, 60) * 1000, dice(20, 800));
    const Cluster cluster = test::small_cluster(dice(1, 4), Bytes(dice(50, 300) * 1000));
    PlanRequest request;
    request.world = cluster.devices;
    request.batch = dice(8, 64);
    request.options.memory_margin = 0.1;
    request.options.max_microbatches = dice(1, 4);
    if (dice.chance(40))
      request.options.stages =
          dice(1, std::min<int>(std::max(1, cluster.devices - 1), static_cast<int>(model.graph.node_count())));
    const RooflineCost cost(cluster);
    const Workload work = make_workload(model, cost);
    const Constraints constraints = resolve(request, work, cluster);
    try {
      (void)Planner<>{}.plan(model, cluster, request);
    } catch (const InfeasiblePlan& error) {
      ++infeasible;
      CAPTURE(error.what());
      CHECK(error.needed() > error.available());
      CHECK(error.available() == constraints.memory);
      CHECK(error.stage().valid());
      const StepObjective objective(work, cluster, constraints);
      const auto least = least_memory(objective);
      REQUIRE(least);
      const Remedies remedies = find_remedies(work, cluster, request, constraints, least->peak);
      const auto applied = [&](auto&& change) {
        PlanRequest changed = request;
        change(changed);
        return fits(model, cluster, changed);
      };
      REQUIRE(remedies.device_memory);
      ++memory;
      CHECK(applied([&](PlanRequest& r) { r.options.device_memory = *remedies.device_memory; }));
      CHECK(error.remedy().find("device_memory = " + std::to_string(remedies.device_memory->value())) !=
            std::string::npos);
      if (remedies.world) {
        ++ranks;
        CHECK(applied([&](PlanRequest& r) { r.world = *remedies.world; }));
        if (*remedies.world <= 2 * request.world)
          CHECK_FALSE(applied([&](PlanRequest& r) { r.world = *remedies.world - 1; }));
      }
      if (remedies.stages) {
        ++stages;
        CHECK(applied([&](PlanRequest& r) { r.options.stages = *remedies.stages; }));
        CHECK_FALSE(applied([&](PlanRequest& r) { r.options.stages = *remedies.stages - 1; }));
      }
      if (remedies.microbatches) {
        ++microbatches;
        CHECK(applied(
            [&](PlanRequest& r) { r.options.max_microbatches = r.options.microbatches = *remedies.microbatches; }));
      }
      CHECK_FALSE(remedies.recompute);  // this runtime does neither
      CHECK_FALSE(remedies.zero);
      if (remedies.optimizer_state_factor) {
        ++factors;
        CHECK(applied([&](PlanRequest& r) { r.options.optimizer_state_factor = *remedies.optimizer_state_factor; }));
        CHECK_FALSE(applied(
            [&](PlanRequest& r) { r.options.optimizer_state_factor = *remedies.optimizer_state_factor + 1.0 / 16; }));
      }
    }
  }
  CHECK(infeasible > 100);
  CHECK(memory == infeasible);
  CHECK(ranks > 20);
  CHECK(microbatches > 5);
  CHECK(factors > 20);
  CHECK(stages > 3);
}

TEST_CASE("the least memory is what the stage really needs") {
  const ModelProfile model = test::chain(1, 1e5, 100'000, 0);
  Cluster cluster = test::small_cluster(1, Bytes(300'000));
  PlanRequest request;
  request.options.memory_margin = 0;
  try {
    (void)Planner<>{}.plan(model, cluster, request);
    FAIL("accepted");
  } catch (const InfeasiblePlan& error) {
    CHECK(error.stage() == StageId(0));
    // parameter + gradient + 2 x state + 2 x temporaries of the optimizer, more than the 16 bytes saved and 64 of workspace
    CHECK(error.needed() == Bytes(6 * 100'000));
  }
  cluster.device.memory = Bytes(6 * 100'000);
  CHECK(fits(model, cluster, request));
  cluster.device.memory = Bytes(6 * 100'000 - 1);
  CHECK_FALSE(fits(model, cluster, request));
}

TEST_CASE("savings that were ruled out are suggested where they are enough", "[laws]") {
  int recomputed = 0, sharded = 0, offloaded = 0, neither = 0;
  for (std::uint64_t seed = 0; seed < 1300; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 555'000);
    const bool many_parameters = dice.chance(50);
    ModelProfile model = test::chain(dice(2, 9), 1e5, many_parameters ? dice(15, 30) * 1000 : 1000, dice(20, 100));
    for (const NodeId node : model.graph.nodes()) model.graph[node].saved.per_sample *= many_parameters ? 1 : 40;
    Cluster cluster = test::small_cluster(dice(1, 4), Bytes(dice(60, 300) * 1000));
    if (dice.chance(70)) cluster.host = test::small_host(Bytes(dice(60, 900) * 1000));
    PlanRequest request;
    request.world = cluster.devices;
    request.batch = dice(8, 64);
    request.options.max_microbatches = dice(1, 4);
    request.runtime.offload = dice.chance(80);
    request.options.offload = "none";
    request.runtime.max_zero = dice(0, 3);
    request.runtime.recompute = dice.chance(70);
    request.options.recompute = "none";
    request.options.zero = 0;
    const RooflineCost cost(cluster);
    const Workload work = make_workload(model, cost);
    const Constraints constraints = resolve(request, work, cluster);
    const auto least = least_memory(StepObjective(work, cluster, constraints));
    REQUIRE(least);
    if (least->peak <= constraints.memory) continue;
    const Remedies remedies = find_remedies(work, cluster, request, constraints, least->peak);
    PlanRequest changed = request;
    changed.options.recompute = "auto";
    if (remedies.recompute) {
      ++recomputed;
      CHECK(fits(model, cluster, changed));
    }
    changed = request;
    if (remedies.zero) {
      ++sharded;
      CHECK(*remedies.zero <= request.runtime.max_zero);
      changed.options.zero = *remedies.zero;
      CHECK(fits(model, cluster, changed));
    }
    changed = request;
    if (remedies.offload) {
      ++offloaded;
      CHECK(request.runtime.offload);
      changed.options.offload = "optimizer";
      CHECK(fits(model, cluster, changed));
      CHECK_THAT(describe(remedies, cluster, request, constraints),
                 Catch::Matchers::Contains("offload = optimizer instead of none"));
    }
    neither += !remedies.recompute && !remedies.zero && !remedies.offload ? 1 : 0;
  }
  CHECK(recomputed > 40);
  CHECK(sharded > 8);
  CHECK(offloaded > 30);
  CHECK(neither > 20);
}

TEST_CASE("hosts that cannot hold what must be offloaded are named, with what would do") {
  const ModelProfile model = test::chain(1, 1e5, 100'000, 0);
  Cluster cluster = test::small_cluster(1, Bytes(300'000));
  cluster.host = test::small_host(Bytes(6 * 100'000 - 1));
  PlanRequest request;
  request.runtime.offload = true;
  request.options.memory_margin = 0;
  request.options.offload = "optimizer";
  try {
    (void)Planner<>{}.plan(model, cluster, request);
    FAIL("accepted");
  } catch (const InfeasiblePlan& error) {
    CHECK(error.needed() == Bytes(6 * 100'000));  // parameter + gradient + 2 x state + 2 x temporaries
    CHECK(error.available() == cluster.host->memory);
    CHECK_THAT(error.what(), Catch::Matchers::Contains("offload = optimizer puts") &&
                                 Catch::Matchers::Contains("its host's memory"));
    CHECK_THAT(error.remedy(), Catch::Matchers::Contains("zero = 1"));
  }
  cluster.host->memory += Bytes(1);
  const Plan plan = Planner<>{}.plan(model, cluster, request);
  CHECK(plan.stages[0].host_memory == Bytes(6 * 100'000));
  CHECK(plan.stages[0].peak_memory < Bytes(201'000));  // parameter + gradient, and what is in flight
}
