#include <autopar/plan/request.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <variant>

#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/planner.hpp>
#include <autopar/testing/random_models.hpp>

#include <catch_shim.hpp>

namespace {
namespace variants_test {

using namespace autopar;
using testing::Dice;

std::optional<Seconds> step_of(const PlanOutcome& outcome) {
  const auto* plan = std::get_if<Plan>(&outcome);
  return plan == nullptr ? std::nullopt : std::optional(plan->step);
}

/// A chain, its cluster with memory for it or not, and two programs that take other time and memory.
struct Problem {
  explicit Problem(std::uint64_t seed) {
    Dice dice(seed);
    cluster = testing::small_cluster(dice(1, 4));
    const auto chain = [&] { return testing::chain(dice(2, 8), 1e6 * dice(1, 50), 1000 * dice(1, 60), 400); };
    own = chain();
    for (int i = 0; i < 2; ++i) request.variants.push_back({chain(), ProfiledCost(cluster, {})});
    request.batch = 16;
    request.options.optimizer_state_factor = 2;
    request.options.device_memory = Bytes(dice(20'000, 2'000'000));
    request.options.memory_margin = 0;
    request.remedies = dice.chance(50);
  }

  [[nodiscard]] PlanOutcome answer() const {
    return try_plan_with_defaults(own, ProfiledCost(cluster, {}), cluster, request);
  }
  [[nodiscard]] PlanOutcome answer_alone(const ModelProfile& program) const {
    PlanRequest alone = request;
    alone.variants.clear();
    return try_plan_with_defaults(program, ProfiledCost(cluster, {}), cluster, alone);
  }

  Cluster cluster;
  ModelProfile own;
  PlanRequest request;
};

TEST_CASE("variants: the answer is the fastest plan of any program") {
  int planned = 0, refused = 0, changed = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Problem problem(seed);
    const auto own = step_of(problem.answer_alone(problem.own));
    auto best = own;
    for (const auto& variant : problem.request.variants) {
      const auto other = step_of(problem.answer_alone(variant.profile));
      if (other && (!best || *other < *best)) best = other;
    }
    INFO("seed " << seed);
    const auto answer = step_of(problem.answer());
    REQUIRE(answer.has_value() == best.has_value());
    if (best) CHECK(*answer == *best);
    planned += best ? 1 : 0;
    refused += best ? 0 : 1;
    changed += best != own ? 1 : 0;
  }
  CHECK(planned >= 10);
  CHECK(refused >= 3);
  CHECK(changed >= 10);
}

TEST_CASE("variants: a refusal is of the program that needs least") {
  int seen = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Problem problem(seed);
    problem.request.remedies = true;
    problem.request.options.device_memory = Bytes(3'000);
    const auto answer = problem.answer();
    if (!std::holds_alternative<Infeasible>(answer)) continue;
    Bytes least(std::numeric_limits<std::int64_t>::max());
    const auto note = [&](const PlanOutcome& outcome) {
      const auto* why = std::get_if<Infeasible>(&outcome);
      if (why != nullptr && why->needed > Bytes(0)) least = std::min(least, why->needed);
    };
    note(problem.answer_alone(problem.own));
    for (const auto& variant : problem.request.variants) note(problem.answer_alone(variant.profile));
    INFO("seed " << seed);
    CHECK(std::get<Infeasible>(answer).needed == least);
    CHECK_FALSE(std::get<Infeasible>(answer).remedy.empty());
    ++seen;
  }
  CHECK(seen >= 20);
}

TEST_CASE("variants: notes tell what other programs take") {
  const Cluster cluster = testing::small_cluster(1);
  const ModelProfile slow = testing::chain(4, 4e7, 1000, 400), fast = testing::chain(4, 1e7, 1000, 400);
  const auto variant_of = [&](const ModelProfile& profile) {
    ProgramVariant variant{profile, ProfiledCost(cluster, {})};
    variant.chosen_note = [](std::optional<Seconds> other) { return other ? "chosen" : "only one"; };
    variant.passed_note = [](Seconds) { return std::string("passed"); };
    return variant;
  };
  PlanRequest request;
  request.variants = {variant_of(fast)};
  CHECK(plan_with_defaults(slow, cluster, request).notes.back() == "chosen");
  request.variants = {variant_of(slow)};
  CHECK(plan_with_defaults(fast, cluster, request).notes.back() == "passed");
  request.variants.front().is_worth = [](const Plan* best) { return best == nullptr; };
  const auto plan = plan_with_defaults(fast, cluster, request);
  CHECK(std::ranges::find(plan.notes, "passed") == plan.notes.end());
}

TEST_CASE("variants: what all contradict is thrown, as without any") {
  const Cluster cluster = testing::small_cluster(2);
  const ModelProfile model = testing::chain(4, 1e7, 1000, 400);
  PlanRequest request;
  request.options.tensor_parallel = 2;  // the model has no regions
  request.runtime.max_tensor_parallel = 2;
  CHECK_THROWS_AS(plan_with_defaults(model, cluster, request), InvalidArgument);
  request.variants = {{model, ProfiledCost(cluster, {})}};
  CHECK_THROWS_AS(plan_with_defaults(model, cluster, request), InvalidArgument);
  request.options.stages = 3;
  request.options.tensor_parallel = 0;
  CHECK_THROWS_AS(plan_with_defaults(model, cluster, request), InvalidArgument);
}

TEST_CASE("Planner: starved plans give way to plans without replicas") {
  const Cluster cluster = testing::small_cluster(2);
  const ModelProfile model = testing::chain(4, 1e7, 1000, 400);
  PlanRequest request;
  request.batch = 16;
  const auto replicas_of = [](const Plan& plan) {
    int most = 0;
    for (const auto& stage : plan.stages) most = std::max(most, stage.mesh.replicas());
    return most;
  };
  REQUIRE(replicas_of(plan_with_defaults(model, cluster, request)) == 2);
  request.starves = [&](const Plan& plan) { return replicas_of(plan) > 1; };
  CHECK(replicas_of(plan_with_defaults(model, cluster, request)) == 1);
}

TEST_CASE("depends_on_costs: not where one rank has no choice") {
  int with_choice = 0, as_it_is = 0, nothing_fits = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Problem problem(seed);
    problem.cluster = testing::small_cluster(1);
    problem.request.runtime = runtime_capabilities();
    problem.request.remedies = false;
    const auto& schedules = problem.request.runtime.schedules;
    if (seed % 2 == 1) problem.request.options.schedule = schedules[seed / 2 % schedules.size()];
    for (const NodeId node : problem.own.graph.nodes()) problem.own.graph[node].saved = {1e5, 0};
    problem.request.options.device_memory = Bytes(std::int64_t{1} << 40);
    const auto roomy = plan_with_defaults(problem.own, problem.cluster, [&] {
      auto alone = problem.request;
      alone.variants.clear();
      return alone;
    }());
    const auto peak = roomy.stages.front().peak_memory.value();
    problem.request.options.device_memory = Bytes(peak * (2 + 2 * static_cast<std::int64_t>(seed)) / 100);
    const bool depends = depends_on_costs(problem.own, problem.cluster, problem.request);
    const auto outcome = problem.answer_alone(problem.own);
    INFO("seed " << seed);
    if (const auto* plan = std::get_if<Plan>(&outcome)) {
      const bool recomputes =
          std::ranges::any_of(plan->stages, [](const StagePlan& stage) { return !stage.recomputed.empty(); });
      const bool has_choice =
          plan->stages.size() > 1 || plan->microbatches > 1 || plan->offload != Offload::kNone || recomputes;
      CHECK(depends == has_choice);
      (has_choice ? with_choice : as_it_is) += 1;
    } else {
      CHECK_FALSE(depends);
      ++nothing_fits;
    }
  }
  CHECK(with_choice >= 3);
  CHECK(as_it_is >= 3);
  CHECK(nothing_fits >= 3);
}

}  // namespace variants_test
}  // namespace
