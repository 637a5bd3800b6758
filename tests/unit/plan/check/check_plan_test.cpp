#include <autopar/plan/check/check_plan.hpp>

#include <catch_shim.hpp>

#include <functional>
#include <map>
#include <optional>
#include <string>

#include <autopar/plan/brute_force.hpp>
#include <autopar/plan/chunked_staging.hpp>
#include <autopar/plan/planner.hpp>
#include <autopar/plan/print.hpp>

#include "../random_instances.hpp"
#include "../random_models.hpp"

using namespace autopar;
using test::Dice;

namespace {

struct CheckedCase {
  ModelProfile model;
  Cluster cluster;
  PlanRequest request;
};

CheckedCase random_case(int seed) {
  Dice dice(static_cast<std::uint64_t>(seed) + 77);
  CheckedCase out{test::random_model(dice, 8), test::small_cluster(dice(1, 6)), {}};
  out.request.batch = dice(1, 40);
  auto& options = out.request.options;
  options.optimizer_state_factor = dice(0, 2);
  options.max_microbatches = dice(1, 9);
  if (dice.chance(30)) options.schedule = dice.chance(50) ? "gpipe" : "1f1b";
  if (dice.chance(30)) options.memory_margin = 0.8;
  return out;
}

/// All that the planner has: savings and schedules in turn, memory that is sometimes short.
CheckedCase random_full_case(int seed) {
  Dice dice(static_cast<std::uint64_t>(seed) + 4711);
  const Bytes memory(dice.chance(50) ? 1 << 20 : dice(150, 700) * 1000);
  CheckedCase out{test::random_model(dice, 10), test::small_cluster(dice(1, 6), memory), {}};
  if (dice.chance(80)) out.model.loss_mode = true, out.model.outputs[0].bytes = {0, 8};
  out.request.batch = dice(1, 40);
  out.request.runtime = planner_capabilities();
  auto& options = out.request.options;
  options.optimizer_state_factor = dice(0, 4) / 2.0;
  options.max_microbatches = dice(1, 9);
  options.memory_margin = 0.05 * dice(0, 3);
  if (dice.chance(50)) options.zero = dice(0, 3);
  const int recompute = dice(0, 2);
  options.recompute = recompute == 0 ? "auto" : recompute == 1 ? "full" : "none";
  const int schedule = dice(0, 7);
  if (schedule > 1) options.schedule = planner_capabilities().schedules[static_cast<std::size_t>(schedule - 2)];
  return out;
}

template <class... Policies>
std::optional<Plan> planned_with(const Planner<Policies...>& planner, const CheckedCase& c) {
  try {
    return planner.plan(c.model, c.cluster, c.request);
  } catch (const InfeasiblePlan&) {
    return std::nullopt;
  } catch (const InvalidArgument&) {  // a schedule that the model cannot have
    return std::nullopt;
  } catch (const CaptureError&) {
    return std::nullopt;
  }
}

std::optional<Plan> planned_by(const CheckedCase& c, bool exact) {
  if (!exact) return planned_with(Planner<ChunkedStaging>{}, c);
  Planner<> planner;
  planner.staging.max_states = 500;
  return planned_with(planner, c);
}

std::optional<Plan> planned(const CheckedCase& c) {
  Planner<> planner;
  planner.staging.max_states = 3000;
  try {
    return planner.plan(c.model, c.cluster, c.request);
  } catch (const InfeasiblePlan&) {
    return std::nullopt;
  }
}

PlanVerdict verdict_on(const CheckedCase& c, const Plan& plan) {
  return check_plan(c.model, RooflineCost(c.cluster), c.cluster, plan);
}

std::string joined(const std::vector<std::string>& faults) {
  std::string out;
  for (const auto& fault : faults)
    out += fault + "; ";
  return out;
}

}  // namespace

TEST_CASE("the checker works out what the planner predicted: step, memory, bound, gap", "[check]") {
  int checked = 0;
  for (int seed = 0; seed < 400; ++seed) {
    const CheckedCase c = random_case(seed);
    const auto plan = planned(c);
    if (!plan) continue;
    const PlanVerdict verdict = verdict_on(c, *plan);
    CAPTURE(seed, joined(verdict.faults), to_text(*plan));
    REQUIRE(verdict.accepted());
    CHECK(verdict.step.value() == Approx(plan->step.value()).epsilon(1e-9));
    CHECK(plan->certificate.lower_bound > Seconds{});
    CHECK(plan->certificate.gap >= -1e-9);
    ++checked;
  }
  CHECK(checked > 300);
}

TEST_CASE("so it does whatever is saved and whatever the schedule", "[check]") {
  std::map<std::string, int> met;
  for (int seed = 0; seed < 600; ++seed) {
    const CheckedCase c = random_full_case(seed);
    const auto plan = planned_by(c, seed % 2 == 0);
    if (!plan) continue;
    const PlanVerdict verdict = verdict_on(c, *plan);
    CAPTURE(seed, joined(verdict.faults), to_text(*plan));
    REQUIRE(verdict.accepted());
    CHECK(verdict.step.value() == Approx(plan->step.value()).epsilon(1e-9));
    CHECK(verdict.gap >= -1e-9);
    const auto zero = "zero " + std::to_string(plan->zero);
    const Savings savings = savings_of(*plan);
    const bool replicated = std::ranges::any_of(plan->stages, [](const auto& stage) { return stage.ranks.size() > 1; });
    ++met["all"], ++met[name_of(plan->schedule)];
    if (replicated) ++met[zero];
    if (savings.recomputes()) ++met["recomputed"];
    if (savings.recomputes() && !ChunkedStaging::is_plain(plan->schedule)) ++met["recomputed, chunked"];
  }
  for (const auto& [what, times] : met) WARN(what << " " << times);
}

TEST_CASE("no staging is below the certificate's bound", "[check]") {
  int compared = 0;
  for (int seed = 1000; seed < 1200; ++seed) {
    CheckedCase c = random_case(seed);
    const auto plan = planned(c);
    if (!plan) continue;
    // Any other options: the bound holds for all of them.
    Dice dice(static_cast<std::uint64_t>(seed));
    for (int other = 0; other < 4; ++other) {
      CheckedCase forced = c;
      auto& options = forced.request.options;
      const bool mixes = std::ranges::any_of(c.model.graph.nodes(), [&](NodeId n) {
        return c.model.graph[n].whole_batch || c.model.graph[n].totals > Bytes(0);
      });
      options.schedule = other % 2 == 0 ? "gpipe" : "1f1b";
      if (!mixes) options.microbatches = dice(1, 12), options.max_microbatches = 64;
      options.memory_margin = 0;
      options.stages = dice(0, std::min<int>(forced.cluster.devices, static_cast<int>(c.model.graph.node_count())));
      const auto worse = planned(forced);
      if (!worse) continue;
      CAPTURE(seed, to_text(*plan), to_text(*worse));
      REQUIRE(worse->step.value() >= plan->certificate.lower_bound.value() * (1 - 1e-9));
      CHECK(worse->certificate.lower_bound == plan->certificate.lower_bound);
      CHECK(verdict_on(forced, *worse).accepted());
      ++compared;
    }
  }
  CHECK(compared > 300);
}

TEST_CASE("a raised bound and every tampered statement are rejected", "[check]") {
  const CheckedCase c{test::chain(6, 3e5, 40000, 4000), test::small_cluster(4, Bytes(1 << 20)), {.batch = 32}};
  const auto plan = planned(c);
  REQUIRE(plan);
  REQUIRE(plan->stages.size() > 1);
  REQUIRE(verdict_on(c, *plan).accepted());
  const auto rejected = [&](const std::string& part, const std::function<void(Plan&)>& tamper) {
    Plan wrong = *plan;
    tamper(wrong);
    const auto verdict = verdict_on(c, wrong);
    CAPTURE(part, joined(verdict.faults));
    CHECK(joined(verdict.faults).find(part) != std::string::npos);
  };
  const auto raise = [](Seconds& seconds) { seconds = seconds * 1.001; };
  rejected("support no more", [&](Plan& p) { raise(p.certificate.lower_bound); });
  rejected("support no more", [&](Plan& p) {
    raise(p.certificate.lower_bound);
    p.certificate.gap = p.step / p.certificate.lower_bound - 1;
  });
  rejected("but it is", [&](Plan& p) { raise(p.certificate.cases.back().seconds); });
  rejected("no lower bound", [](Plan& p) { p.certificate.lower_bound = Seconds{}; });
  rejected("cover", [](Plan& p) { p.certificate.cases.clear(); });
  rejected("leave out", [](Plan& p) { p.certificate.cases.front().from = 2; });
  rejected("cover", [](Plan& p) { p.certificate.cases.back().to = 1000; });
  rejected("but it is", [](Plan& p) { p.certificate.cases.back().kind = BoundKind::kPath; });
  rejected("gap", [](Plan& p) { p.certificate.gap *= 0.9; });
  rejected("above the plan's own step", [](Plan& p) { p.certificate.searched_bound = p.step * 1.1; });
  rejected("step", [](Plan& p) { p.step = p.step * 0.999; });
  rejected("bubble", [](Plan& p) { p.bubble += 0.01; });
  rejected("peak memory", [](Plan& p) { p.stages[0].peak_memory = Bytes(1); });
  rejected("a rank has", [](Plan& p) { p.device_memory = Bytes(1000); });
  rejected("the devices have", [](Plan& p) { p.device_memory = Bytes(std::int64_t{1} << 50); });
  rejected("forward", [&](Plan& p) { raise(p.stages[1].forward); });
  rejected("backward", [&](Plan& p) { raise(p.stages[1].backward); });
  rejected("messages", [&](Plan& p) { raise(p.stages[0].communication); });
  rejected("gradient sums", [](Plan& p) { p.stages[0].reduction += Seconds(1e-6); });
  rejected("parameter bytes", [](Plan& p) { p.stages[0].parameter_bytes += Bytes(4); });
  rejected("elements", [](Plan& p) { p.stages[0].parameter_elements += 1; });
  rejected("not those that its atoms read", [](Plan& p) { p.stages[0].parameters.pop_back(); });
  rejected("not those of its atoms", [](Plan& p) { p.stages[0].ops.pop_back(); });
  rejected("in no stage", [](Plan& p) { p.stages[0].atoms.pop_back(); });
  rejected("in two stages", [](Plan& p) { p.stages[1].atoms.push_back(p.stages[0].atoms[0]); });
  rejected("has not", [](Plan& p) { p.stages[1].atoms.push_back(NodeId(99)); });
  rejected("back to stage 0", [](Plan& p) { std::swap(p.stages[0].atoms, p.stages[1].atoms); });
  rejected("runs two stages", [](Plan& p) { p.stages[0].ranks = p.stages[1].ranks; });
  rejected("outside the world", [](Plan& p) { p.stages[0].ranks = {Rank(7)}; });
  rejected("another", [](Plan& p) { p.device = "another"; });
  rejected("made for model", [](Plan& p) { ++p.model; });
  rejected("5 ranks", [](Plan& p) { p.world = 5; });
  rejected("samples", [](Plan& p) { p.batch = 0; });
  rejected("step", [](Plan& p) {
    p.schedule = p.schedule == ScheduleKind::kGPipe ? ScheduleKind::kOneFOneB : ScheduleKind::kGPipe;
  });
  rejected("step", [](Plan& p) { p.microbatches = 2; });
  rejected("step", [](Plan& p) { p.batch += 4; });
}

TEST_CASE("a worse plan passes, with its larger gap", "[check]") {
  CheckedCase c{test::chain(6, 3e5, 4000, 4000), test::small_cluster(4, Bytes(8 << 20)), {.batch = 32}};
  const auto best = planned(c);
  c.request.options.stages = 4;
  c.request.options.microbatches = 1;
  const auto worse = planned(c);
  REQUIRE(best);
  REQUIRE(worse);
  const auto verdict = verdict_on(c, *worse);
  CHECK(verdict.accepted());
  CHECK(verdict.gap > best->certificate.gap + 0.1);
  CHECK(verdict.gap == Approx(worse->certificate.gap));
}

TEST_CASE("costs without economy of scale have no certificate, and a claimed one is rejected", "[check]") {
  CheckedCase c{test::chain(3, 3e5, 4000, 4000), test::small_cluster(2, Bytes(8 << 20)), {.batch = 8}};
  for (const NodeId atom : c.model.graph.nodes())
    c.model.graph[atom].work.front().forward.flops.fixed = -1;
  auto plan = planned(c);
  REQUIRE(plan);
  CHECK(plan->certificate.lower_bound == Seconds{});
  CHECK(plan->certificate.cases.empty());
  CHECK(verdict_on(c, *plan).accepted());
  plan->certificate.lower_bound = Seconds(1e-9);
  CHECK_FALSE(verdict_on(c, *plan).accepted());
}
