#include <autopar/plan/report/ties.hpp>

#include <catch_shim.hpp>

#include <autopar/plan/planner.hpp>
#include <autopar/plan/verify/check_plan.hpp>
#include <autopar/testing/dice.hpp>
#include <autopar/testing/random_models.hpp>

using namespace autopar;
using testing::Dice;

namespace {

struct TiedCase {
  ModelProfile model;
  Cluster cluster;
  PlanRequest request;

  [[nodiscard]] ProfiledCost costs() const { return {cluster, {}}; }
  [[nodiscard]] Plan plan(double ties) const {
    PlanRequest own = request;
    own.ties = ties;
    return Planner<>{}.plan(model, costs(), cluster, own);
  }
  /// What a plan of one tensor degree exchanges.
  [[nodiscard]] Exchanged exchanged(const Plan& plan) const {
    const ProfiledCost own = costs();
    const Workload work = make_workload(model, own);
    Constraints constraints = std::get<Constraints>(try_resolve(request, work, cluster));
    constraints.buckets = plan.buckets;
    constraints.zero_levels = {plan.zero};
    constraints.offloads = {plan.offload};
    const StepObjective objective(work, cluster, constraints);
    std::vector<Mesh> meshes;
    for (const StagePlan& stage : plan.stages) meshes.push_back(stage.mesh);
    const Staging staging = staging_of(plan, model.graph.node_count());
    return exchanged_in(objective, staging, objective.evaluate(staging, meshes));
  }
};

TiedCase random_tied_case(int seed) {
  Dice dice(static_cast<std::uint64_t>(seed) + 900);
  TiedCase out{testing::random_model(dice, 9), testing::small_cluster(dice(2, 4)), {}};
  out.model.loss_mode = true;
  out.model.outputs[0].bytes = {0, 8};
  out.request.batch = dice(4, 40);
  out.request.runtime = runtime_capabilities();
  out.request.runtime.max_tensor_parallel = 1;
  out.request.options.optimizer_state_factor = dice(0, 2);
  out.request.options.max_microbatches = dice(1, 6);
  if (dice.chance(50)) out.request.options.schedule = ScheduleKind::kOneFOneB;
  return out;
}

/// Four layers on two ranks that run all of them.
TiedCase replicas(int zero, int microbatches) {
  TiedCase out{testing::chain(4, 1e6, 1 << 20, 1 << 10), testing::small_cluster(2, Bytes(1 << 30)), {}};
  out.model.loss_mode = true;
  out.model.outputs[0].bytes = {0, 8};
  out.request.batch = 8;
  out.request.runtime = runtime_capabilities();
  auto& options = out.request.options;
  options.stages = 1;
  options.replicas = {2};
  options.microbatches = microbatches;
  options.zero = zero;
  options.tensor_parallel = 1;
  options.offload = Offload::kNone;
  return out;
}

}  // namespace

TEST_CASE("exchanged: what replicas send, by ZeRO level and micro-batches") {
  constexpr std::int64_t kParameters = 4 << 20;
  const auto bytes = [&](int zero, int microbatches) {
    const TiedCase own = replicas(zero, microbatches);
    return own.exchanged(own.plan(0)).bytes.value();
  };
  CHECK(bytes(0, 1) == 2 * kParameters);  // each of two ranks sends half, twice
  CHECK(bytes(0, 4) == 2 * kParameters);
  CHECK(bytes(1, 1) == 2 * kParameters);  // a sum into shards and a gather
  CHECK(bytes(2, 1) == 2 * kParameters);
  CHECK(bytes(2, 4) == 5 * kParameters);  // sums in every micro-batch
  CHECK(bytes(3, 1) == 3 * kParameters);  // gathers forward and backward
  CHECK(bytes(3, 4) == 12 * kParameters);
  const auto calls = [&](int zero) {
    const TiedCase own = replicas(zero, 1);
    return own.exchanged(own.plan(0)).calls;
  };
  CHECK(calls(0) == calls(1));
  CHECK(calls(1) < calls(3));
}

TEST_CASE("exchanged: gradients sent in bf16 are half as many bytes") {
  constexpr std::int64_t kHalf = 2 << 20;  // of the bytes of parameters
  const auto bytes = [&](int zero, int microbatches) {
    TiedCase own = replicas(zero, microbatches);
    for (ParameterProfile& parameter : own.model.parameters) parameter.elements = parameter.bytes.value() / 4;
    own.request.options.reduce_dtype = ReduceDtype::kBf16;
    return own.exchanged(own.plan(0)).bytes.value();
  };
  CHECK(bytes(0, 1) == 2 * kHalf);
  CHECK(bytes(1, 1) == 3 * kHalf);  // what is gathered stays as it is
  CHECK(bytes(2, 4) == (4 + 2) * kHalf);
  CHECK(bytes(3, 4) == (4 + 8 * 2) * kHalf);
}

TEST_CASE("exchanged: a pipeline sends values and their gradients") {
  TiedCase own = replicas(0, 4);
  own.request.options.stages = 2;
  own.request.options.replicas = {1, 1};
  own.request.options.schedule = ScheduleKind::kOneFOneB;
  const Exchanged sent = own.exchanged(own.plan(0));
  CHECK(sent.bytes.value() == 2 * 8 * 1024);  // eight samples, forth and back
  CHECK(sent.calls == 2 * 4);
}

bool is_replicas_of_all(const Plan& plan, int world) {
  return plan.stages.size() == 1 && plan.stages[0].mesh.replicas() == world;
}

TEST_CASE("ties: within the part, replicas or the best staging, at the level that exchanges least") {
  int changed = 0, replaced = 0;
  for (int seed = 0; seed < 120; ++seed) {
    const TiedCase own = random_tied_case(seed);
    std::optional<Plan> best;
    try {
      best = own.plan(0);
    } catch (const InfeasiblePlan&) {
      continue;
    }
    for (const double part : {0.02, 0.3}) {
      const Plan plan = own.plan(part);
      CAPTURE(seed, part, describe(plan), describe(*best));
      CHECK(plan.step <= best->step * (1 + part) * (1 + 1e-12));
      const auto verdict = check_plan(own.model, own.costs(), own.cluster, plan);
      CHECK(verdict.faults == std::vector<std::string>{});
      const int world = own.cluster.devices;
      const std::string replicas = "1 stage x " + std::to_string(world) + " replicas";
      const bool has_replicas = std::ranges::any_of(best->runners_up, [&](const RunnerUp& other) {
        return other.summary.starts_with(replicas) && !other.reason.starts_with("does not fit") &&
               other.step <= best->step * (1 + part);
      });
      if (has_replicas) CHECK(is_replicas_of_all(plan, world));
      if (staging_of(plan, own.model.graph.node_count()) == staging_of(*best, own.model.graph.node_count())) {
        const Exchanged chosen = own.exchanged(plan), of_best = own.exchanged(*best);
        CHECK_FALSE(of_best < chosen);
      } else {
        CHECK(has_replicas);
        ++replaced;
      }
      const bool is_other = plan.step > best->step * (1 + 1e-12);
      if (is_other) CHECK_FALSE(plan.certificate.searched_to_end);
      CHECK(plan.certificate.searched_bound <= best->step * (1 + 1e-12));
      const bool is_told = std::ranges::any_of(
          plan.notes, [](const std::string& note) { return note.starts_with("chosen among ties"); });
      if (is_other) CHECK(is_told);
      changed += is_told ? 1 : 0;
    }
  }
  CHECK(changed > 20);
  CHECK(replaced > 10);
}

TEST_CASE("ties: the ZeRO level that exchanges least, unless memory needs another") {
  TiedCase own = replicas(-1, 1);
  own.request.options.zero = -1;
  CHECK(own.plan(0.02).zero <= 2);
  own.cluster.device.memory = Bytes(22 << 20);
  CHECK(own.plan(0.02).zero >= 1);
}
