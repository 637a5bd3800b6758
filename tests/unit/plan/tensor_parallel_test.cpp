#include <autopar/plan/search/tensor_degrees.hpp>

#include <catch_shim.hpp>

#include <optional>
#include <string>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/check/check_plan.hpp>
#include <autopar/plan/check/require_sound.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/plan/search/exact_staging.hpp>
#include <autopar/testing/brute_force.hpp>
#include <autopar/testing/random_models.hpp>

using namespace autopar;
using testing::Dice;

namespace {

struct Instance {
  ModelProfile model;
  Cluster cluster;
  PlanRequest request;
};

/// What random models have, with regions; sometimes little memory, sometimes more ZeRO than shards know.
Instance random_instance(int seed, int max_nodes = 6, int max_devices = 6) {
  Dice dice(static_cast<std::uint64_t>(seed) + 31337);
  const Bytes memory(dice.chance(60) ? 1 << 20 : dice(150, 500) * 1000);
  Instance out{testing::random_model(dice, max_nodes), testing::small_cluster(dice(1, max_devices), memory), {}};
  testing::add_tensor_regions(out.model, dice);
  out.request.batch = dice(1, 24);
  out.request.runtime = runtime_capabilities();
  out.request.runtime.max_tensor_parallel = 8;
  out.request.options.optimizer_state_factor = dice(0, 2);
  out.request.options.max_microbatches = dice(1, 4);
  out.request.options.memory_margin = 0;
  return out;
}

/// Nothing where options contradict the model, or nothing fits.
std::optional<Plan> planned(const Instance& c) {
  try {
    return plan_with_defaults(c.model, c.cluster, c.request);
  } catch (const InfeasiblePlan&) {
    return std::nullopt;
  } catch (const InvalidArgument&) {
    return std::nullopt;
  } catch (const CaptureError&) {
    return std::nullopt;
  }
}

std::string faults(const Instance& c, const Plan& plan) {
  std::string out;
  for (const auto& fault : check_plan(c.model, RooflineCost(c.cluster), c.cluster, plan).faults) out += fault + "; ";
  return out;
}

bool has_shards(const Plan& plan) {
  return std::ranges::any_of(plan.stages, [](const StagePlan& stage) { return stage.mesh.tensor() > 1; });
}

/// Without starts of operators, which no shard is spared.
Cluster without_launches(int devices) {
  Cluster cluster = testing::small_cluster(devices);
  cluster.device.launch = Seconds{};
  return cluster;
}

}  // namespace

TEST_CASE("a stage that shards compute together takes its part of the time and of the memory, and what they exchange",
          "[laws]") {
  ModelProfile model = testing::chain(3, 1e6, 24000, 480);
  for (const ParameterProfile& parameter : model.parameters) CHECK(parameter.bytes == Bytes(24000));
  model.tensor_regions = {{{NodeId(0), NodeId(1), NodeId(2)},
                           {ParameterId(0), ParameterId(1), ParameterId(2)},
                           12,
                           true,
                           {160, 0},
                           {80, 40},
                           1,
                           2}};
  for (const int shards : {2, 3, 4, 6}) {
    const Cluster cluster = without_launches(shards);
    const RooflineCost cost(cluster);
    const Workload work = make_workload(model, cost);
    Constraints constraints;
    constraints.world = shards;
    constraints.batch = 12 * shards;
    constraints.memory = Bytes(1 << 30);
    const StepObjective objective(work, cluster, constraints);
    const auto terms = objective({{0, 0, 0}, {1}, 1, ScheduleKind::kGPipe, {}, {shards}});
    const auto whole = objective({{0, 0, 0}, {1}, 1, ScheduleKind::kGPipe});
    REQUIRE(terms.meshes.front().tensor() == shards);
    const auto all = terms.meshes.front().tensor_group(0);
    const std::int64_t samples = constraints.batch;
    const Seconds forward = cost.all_reduce(Bytes(160 * samples), all);
    const Seconds backward = cost.all_reduce(Bytes((80 * samples + 40 + 1) / 2), all) * 2.0;
    const StageTerms &own = terms.stages.front(), &alone = whole.stages.front();
    CHECK(own.forward.value() == Approx((alone.forward / shards + forward).value()).epsilon(1e-12));
    CHECK(own.backward.value() == Approx((alone.backward / shards + backward).value()).epsilon(1e-12));
    CHECK(own.update.value() == Approx((alone.update / shards).value()).epsilon(1e-12));
    CHECK(own.memory.parameters.value() == alone.memory.parameters.value() / shards);
    CHECK(own.memory.gradients.value() == alone.memory.gradients.value() / shards);
    CHECK(own.memory.optimizer.value() == alone.memory.optimizer.value() / shards);
    CHECK(own.memory.saved.value() <= alone.memory.saved.value() / shards + 3);
    CHECK(own.reduction == Seconds{});
  }
}

TEST_CASE("a region that is cut, or that does not admit so many shards, is computed whole", "[laws]") {
  ModelProfile model = testing::chain(4, 1e6, 24000, 480);
  model.tensor_regions = {{{NodeId(0), NodeId(1)}, {ParameterId(0), ParameterId(1)}, 6, true, {}, {}, 0, 0},
                          {{NodeId(2), NodeId(3)}, {ParameterId(2)}, 5, false, {}, {}, 0, 0}};
  const Cluster cluster = testing::small_cluster(8);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  const auto shards = [&](std::vector<int> stage_of, std::vector<int> tensor) {
    return region_shards_of(
        work,
        {std::move(stage_of), std::vector<int>(tensor.size(), 1), 1, ScheduleKind::kGPipe, {}, std::move(tensor)});
  };
  CHECK(shards({0, 0, 0, 0}, {2}) == std::vector{2, 2});
  CHECK(shards({0, 0, 0, 0}, {4}) == std::vector{1, 4});
  CHECK(shards({0, 0, 0, 0}, {6}) == std::vector{6, 1});
  CHECK(shards({0, 0, 1, 1}, {2, 4}) == std::vector{2, 4});
  CHECK(shards({0, 1, 1, 1}, {2, 4}) == std::vector{1, 4});
  const Workload sliced = in_shards(work, {{0, 0, 0, 0}, {1}, 1, ScheduleKind::kGPipe, {}, {4}});
  CHECK(sliced.parameters[1].bytes == Bytes(24000));
  CHECK(sliced.parameters[2].bytes == Bytes(24000 * 2 / 5));  // of five units two are on the fullest
  CHECK(sliced.parameters[3].bytes == Bytes(24000));          // not held in slices
  CHECK(sliced.node_costs(8)[0] == work.node_costs(8)[0]);
  CHECK(sliced.node_costs(8)[3].saved == Bytes((work.node_costs(8)[3].saved.value() * 2 + 4) / 5));
}

TEST_CASE("plans with tensor shards are what the checker works out, and can be run", "[laws]") {
  int with_shards = 0, forced = 0, pipelined = 0;
  for (int seed = 0; seed < 400; ++seed) {
    Instance c = random_instance(seed);
    if (seed % 2 == 0) c.request.options.tensor_parallel = c.cluster.devices % 3 == 0 ? 3 : 2;
    const auto plan = planned(c);
    if (!plan) continue;
    CAPTURE(seed, to_text(*plan));
    CHECK(faults(c, *plan) == "");
    CHECK_NOTHROW(require_sound(c.model, *plan));
    if (!has_shards(*plan)) continue;
    ++with_shards;
    forced += seed % 2 == 0 ? 1 : 0;
    pipelined += plan->stages.size() > 1 ? 1 : 0;
  }
  CAPTURE(with_shards, forced, pipelined);
  CHECK(with_shards > 100);
  CHECK(with_shards > forced + 10);
  CHECK(pipelined > 10);
}

TEST_CASE("for one tensor degree of all stages the search finds what brute force finds", "[laws]") {
  int fitting = 0;
  for (int seed = 0; seed < 300; ++seed) {
    const Instance c = random_instance(seed, 5, 4);
    const RooflineCost cost(c.cluster);
    Workload work = make_workload(c.model, cost);
    std::optional<Constraints> constraints;
    try {
      constraints = resolve(c.request, work, c.cluster);
    } catch (const CaptureError&) {
      continue;
    }
    std::erase_if(constraints->schedules, [](ScheduleKind kind) { return !has_closed_form(kind); });
    const StepObjective objective(work, c.cluster, *constraints);
    const auto found =
        detail::search_degrees(objective, [](const StepObjective& each) { return ExactStaging{}.search(each); });
    const auto best =
        detail::search_degrees(objective, [](const StepObjective& each) { return testing::BruteForce{}.search(each); });
    CAPTURE(seed);
    REQUIRE(found.candidates.any_fits() == best.candidates.any_fits());
    if (!best.candidates.any_fits()) continue;
    ++fitting;
    CHECK(found.candidates.best_step().value() == Approx(best.candidates.best_step().value()).epsilon(1e-9));
    CHECK(found.proven);
  }
  CHECK(fitting > 150);
}
