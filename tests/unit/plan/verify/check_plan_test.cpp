#include <autopar/plan/verify/check_plan.hpp>

#include <catch_shim.hpp>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include <autopar/plan/planner.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/plan/search/chunked_staging.hpp>
#include <autopar/testing/brute_force.hpp>
#include <autopar/testing/random_instances.hpp>
#include <autopar/testing/random_models.hpp>

#include "contending_cost.hpp"
#include "unit/plan/verify/oracles.hpp"

using namespace autopar;
using testing::Dice;

namespace {

struct CheckedCase {
  ModelProfile model;
  Cluster cluster;
  PlanRequest request;
  test::ContendingCost::Given contention{kOneAfterTheOther};

  [[nodiscard]] test::ContendingCost costs() const { return {cluster, contention}; }
};

CheckedCase random_case(int seed) {
  Dice dice(static_cast<std::uint64_t>(seed) + 77);
  CheckedCase out{testing::random_model(dice, 8), testing::small_cluster(dice(1, 6)), {}};
  out.request.batch = dice(1, 40);
  auto& options = out.request.options;
  options.optimizer_state_factor = dice(0, 2);
  options.max_microbatches = dice(1, 9);
  if (dice.chance(30)) options.schedule = dice.chance(50) ? ScheduleKind::kGPipe : ScheduleKind::kOneFOneB;
  if (dice.chance(30)) options.memory_margin = 0.8;
  return out;
}

/// All that the planner has: memory optimizations and schedules in turn, memory that is sometimes short.
CheckedCase random_full_case(int seed) {
  Dice dice(static_cast<std::uint64_t>(seed) + 4711);
  const Bytes memory(dice.chance(50) ? 1 << 20 : dice(150, 700) * 1000);
  CheckedCase out{testing::random_model(dice, 10), testing::small_cluster(dice(1, 6), memory), {}};
  if (dice.chance(80)) out.model.loss_mode = true, out.model.outputs[0].bytes = {0, 8};
  out.request.batch = dice(1, 40);
  out.request.runtime = runtime_capabilities();
  auto& options = out.request.options;
  options.optimizer_state_factor = dice(0, 4) / 2.0;
  options.max_microbatches = dice(1, 9);
  options.memory_margin = 0.05 * dice(0, 3);
  if (dice.chance(50)) options.zero = dice(0, 3);
  if (dice.chance(60)) out.cluster.host = testing::small_host(Bytes(dice.chance(50) ? 1 << 20 : dice(50, 400) * 1000));
  if (dice.chance(40)) options.offload = dice.chance(60) ? Offload::kOptimizer : Offload::kNone;
  options.gradient_accumulation = dice.chance(20);
  options.recompute = std::array{Recompute::kToFit, Recompute::kAlways, Recompute::kNever}[std::size_t(dice(0, 2))];
  const int schedule = dice(0, 7);
  if (schedule > 1) options.schedule = kScheduleKinds[static_cast<std::size_t>(schedule - 2)];
  const int most = std::min<int>(out.cluster.devices, static_cast<int>(out.model.graph.node_count()));
  const auto once = [&](NodeId n) { return out.model.graph[n].whole_batch || out.model.graph[n].totals > Bytes(0); };
  if (dice.chance(40) && std::ranges::none_of(out.model.graph.nodes(), once)) {
    options.max_microbatches = 64;
    options.microbatches = dice(1, 11);  // also what goes round unevenly
  }
  if (dice.chance(25)) {  // unequal replicas
    options.replicas.assign(static_cast<std::size_t>(dice(1, most)), 1);
    for (int spare = out.cluster.devices - static_cast<int>(options.replicas.size()); spare > 0; --spare)
      ++options.replicas[static_cast<std::size_t>(dice(0, static_cast<int>(options.replicas.size()) - 1))];
  }
  if (dice.chance(30)) {  // so wide that segments let go of what they gather
    constexpr int kTimes = 1 << 14;
    for (auto& parameter : out.model.parameters) parameter.bytes *= kTimes, parameter.copy *= kTimes;
    out.cluster.device.memory *= kTimes;
    if (out.cluster.host) out.cluster.host->memory *= kTimes;
    if (dice.chance(60)) options.zero = 3, options.recompute = Recompute::kAlways;
  }
  Dice links(static_cast<std::uint64_t>(seed) + 31'000);
  out.contention = test::random_contention(links, out.cluster);
  if (links.chance(50)) out.request.buckets = BucketPolicy{Bytes(links(1, 20) * 1000)};
  return out;
}

template <class... Policies>
std::optional<Plan> planned_with(const Planner<Policies...>& planner, const CheckedCase& c) {
  try {
    return planner.plan(c.model, c.costs(), c.cluster, c.request);
  } catch (const InfeasiblePlan&) {
    return std::nullopt;
  } catch (const InvalidArgument&) {  // a schedule that the model cannot have
    return std::nullopt;
  } catch (const CaptureError&) {
    return std::nullopt;
  }
}

std::optional<Plan> planned_by(CheckedCase c, bool exact) {
  if (!exact) return planned_with(Planner<ChunkedStaging>{}, c);
  c.request.budget.states = 500;
  return planned_with(Planner<>{}, c);
}

std::optional<Plan> planned(CheckedCase c) {
  c.request.budget.states = 3000;
  try {
    return Planner<>{}.plan(c.model, c.costs(), c.cluster, c.request);
  } catch (const InfeasiblePlan&) {
    return std::nullopt;
  }
}

PlanVerdict verdict_on(const CheckedCase& c, const Plan& plan) {
  return check_plan(c.model, c.costs(), c.cluster, plan);
}

std::string joined(const std::vector<std::string>& faults) {
  std::string out;
  for (const auto& fault : faults) out += fault + "; ";
  return out;
}

/// Checks that a plan with one statement changed is rejected for it.
struct Tampering {
  const CheckedCase& c;
  const Plan& plan;
  void operator()(const std::string& part, const std::function<void(Plan&)>& tamper) const {
    Plan wrong = plan;
    tamper(wrong);
    const auto verdict = verdict_on(c, wrong);
    CAPTURE(part, joined(verdict.faults));
    CHECK(joined(verdict.faults).find(part) != std::string::npos);
  }
};

void raise(Seconds& seconds) { seconds = seconds * 1.001; }

/// Eight equal atoms on four ranks with all that the planner has.
CheckedCase eight_atoms(ScheduleKind schedule, int zero, const RecomputeOption& recompute) {
  CheckedCase c{testing::chain(8, 3e5, 40000, 4000), testing::small_cluster(4, Bytes(4 << 20)), {.batch = 32}};
  c.request.runtime = runtime_capabilities();
  c.request.options.schedule = schedule;
  c.request.options.zero = zero;
  c.request.options.recompute = recompute;
  c.request.options.stages = 2;
  c.request.options.replicas = {2};
  c.request.options.microbatches = 4;
  return c;
}

/// Two stages on a rank each, in these orders, with figures that are not right.
Plan in_orders(const CheckedCase& c, const std::vector<std::vector<ComputeAction>>& orders) {
  CheckedCase two = c;
  two.request.options.schedule = ScheduleKind::kOneFOneB;
  two.request.options.replicas = {1};
  two.request.options.microbatches = 2;
  Plan plan = *planned_by(two, true);
  plan.schedule = ScheduleKind::kSynthesised;
  plan.orders = orders;
  plan.orders.resize(4);
  return plan;
}

}  // namespace

TEST_CASE("check_plan: derives the planner's step, memory, bound, gap", "[check]") {
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

/// Plans of the first `cases` seeds, which must meet what is rare as often as 700 do, in proportion.
void check_full_cases(int cases) {
  std::map<std::string, int> met;
  for (int seed = 0; seed < cases; ++seed) {
    const CheckedCase c = random_full_case(seed);
    const auto plan = planned_by(c, seed % 2 == 0);
    if (!plan) continue;
    const PlanVerdict verdict = verdict_on(c, *plan);
    CAPTURE(seed, joined(verdict.faults), to_text(*plan));
    REQUIRE(verdict.accepted());
    CHECK(verdict.step.value() == Approx(plan->step.value()).epsilon(1e-9));
    CHECK(verdict.gap >= -1e-9);
    test::check_with_oracles(c.model, c.costs(), *plan);
    const auto zero = "zero " + std::to_string(plan->zero);
    const MemoryOptimizations optimizations = memory_optimizations_of(*plan);
    const bool replicated =
        std::ranges::any_of(plan->stages, [](const auto& stage) { return stage.mesh.replicas() > 1; });
    ++met["all"], ++met[name_of(plan->schedule)];
    if (replicated) ++met[zero];
    const bool unequal = std::ranges::any_of(
        plan->stages, [&](const auto& stage) { return stage.mesh.replicas() != plan->stages[0].mesh.replicas(); });
    if (unequal && plan->zero > 0) ++met["unequal"];
    for (std::size_t s = 0; plan->zero == 3 && s < plan->stages.size(); ++s) {
      const verify::StatedPlan stated(c.model, *plan);
      const bool lets_go = std::ranges::any_of(plan->stages[s].recomputed, [&](const auto& segment) {
        return verify::regathered(stated, s, segment).once_more > Bytes(0);
      });
      if (lets_go && plan->stages[s].mesh.replicas() > 1) ++met["gathers once more"];
    }
    if (optimizations.offload == Offload::kOptimizer) ++met[c.cluster.host ? "offloaded" : "offloaded in place"];
    if (optimizations.offload == Offload::kOptimizer && !c.request.options.offload) ++met["offloaded to fit"];
    if (optimizations.recomputes()) ++met["recomputed"];
    if (optimizations.recomputes() && !has_closed_form(plan->schedule)) ++met["recomputed, chunked"];
  }
  CHECK(met["all"] * 700 > 400 * cases);
  CHECK(met["recomputed"] * 700 > 100 * cases);
  CHECK(met["recomputed, chunked"] * 700 > 50 * cases);
  CHECK(met["unequal"] * 700 > 20 * cases);
  CHECK(met["gathers once more"] * 700 > 10 * cases);
  CHECK(met["offloaded"] * 700 > 30 * cases);
  CHECK(met["offloaded in place"] * 700 > 15 * cases);
  if (cases >= 700) CHECK(met["offloaded to fit"] > 5);  // too rare for fewer
  for (const ScheduleKind schedule : kScheduleKinds) CHECK(met[name_of(schedule)] * 700 > 30 * cases);
  for (const std::string level : {"zero 0", "zero 1", "zero 2", "zero 3"}) CHECK(met[level] * 700 > 30 * cases);
}

TEST_CASE("check_plan: agrees for all memory options and schedules", "[check]") { check_full_cases(200); }

TEST_CASE("check_plan: agrees for all options, many cases", "[check][.nightly]") { check_full_cases(700); }

TEST_CASE("check_plan: agrees where stages in a synthesised order read one parameter", "[check]") {
  int tied = 0;
  for (int seed = 0; seed < 400; ++seed) {
    CheckedCase c = random_full_case(seed);
    c.request.options.schedule = ScheduleKind::kSynthesised;
    c.request.options.zero = 0;
    const auto plan = planned_by(c, false);
    if (!plan) continue;
    const PlanVerdict verdict = verdict_on(c, *plan);
    CAPTURE(seed, joined(verdict.faults), to_text(*plan));
    REQUIRE(verdict.accepted());
    std::set<ParameterId> read, twice;
    for (const StagePlan& stage : plan->stages) {
      for (const ParameterId id : stage.parameters) (read.insert(id).second ? read : twice).insert(id);
    }
    const std::set<Rank> ranks = [&] {
      std::set<Rank> all;
      for (const StagePlan& stage : plan->stages) all.insert(stage.mesh.ranks().begin(), stage.mesh.ranks().end());
      return all;
    }();
    tied += plan->zero == 0 && !twice.empty() && ranks.size() == plan->stages.size() ? 1 : 0;
  }
  CHECK(tied > 3);
}

TEST_CASE("check_plan: agrees where gradients are sent in bf16", "[check]") {
  std::map<int, int> by_zero;
  int slower = 0;
  for (int seed = 0; seed < 200; ++seed) {
    CheckedCase c = random_full_case(seed);
    Dice dice(static_cast<std::uint64_t>(seed) + 104'729);
    for (ParameterProfile& parameter : c.model.parameters) {
      const std::int64_t size = dice.chance(70) ? 4 : 8;  // the larger are not rounded
      parameter.elements = std::max<std::int64_t>(1, parameter.bytes.value() / size);
      parameter.bytes = Bytes(parameter.elements * size);
    }
    c.request.options.reduce_dtype = ReduceDtype::kBf16;
    const auto plan = planned_by(c, seed % 2 == 0);
    if (!plan || plan->world < 2) continue;
    const PlanVerdict verdict = verdict_on(c, *plan);
    CAPTURE(seed, joined(verdict.faults), to_text(*plan));
    REQUIRE(plan->buckets.reduce_dtype == ReduceDtype::kBf16);
    REQUIRE(verdict.accepted());
    CHECK(verdict.step.value() == Approx(plan->step.value()).epsilon(1e-9));
    test::check_with_oracles(c.model, RooflineCost(c.cluster), *plan);
    if (std::ranges::any_of(plan->stages, [](const auto& stage) { return stage.mesh.replicas() > 1; }))
      ++by_zero[plan->zero];
    Plan in_fp32 = *plan;
    in_fp32.buckets.reduce_dtype = ReduceDtype::kFp32;
    slower += verdict_on(c, in_fp32).accepted() ? 0 : 1;  // it predicts something else
  }
  for (int zero = 0; zero <= 3; ++zero) CHECK(by_zero[zero] > 5);
  CHECK(slower > 50);
}

TEST_CASE("check_plan: agrees where casts of parameters are freed early", "[check]") {
  int checked = 0, recomputed = 0;
  for (int seed = 0; seed < 600; ++seed) {
    CheckedCase c = random_full_case(seed);
    testing::detail::add_copies(Dice(static_cast<std::uint64_t>(seed) + 7919), c.model);
    auto& options = c.request.options;
    c.cluster.devices = 1 + seed % 3;
    options.microbatches = options.max_microbatches = 1;
    options.replicas = {1};
    options.stages = std::min<int>(c.cluster.devices, static_cast<int>(c.model.graph.node_count()));
    options.offload = Offload::kNone;
    options.zero = 0;
    const auto plan = planned_by(c, seed % 2 == 0);
    if (!plan) continue;
    const PlanVerdict verdict = verdict_on(c, *plan);
    CAPTURE(seed, joined(verdict.faults), to_text(*plan));
    REQUIRE(verdict.accepted());
    const auto lets_go = [](const ParameterProfile& parameter) { return parameter.copy_by_call; };
    if (std::ranges::none_of(c.model.parameters, lets_go)) continue;
    ++checked;
    recomputed += memory_optimizations_of(*plan).recomputes() ? 1 : 0;
  }
  CHECK(checked > 30);
  CHECK(recomputed > 10);
}

TEST_CASE("check_plan: no staging is below the certified bound", "[check]") {
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
      options.schedule = other % 2 == 0 ? ScheduleKind::kGPipe : ScheduleKind::kOneFOneB;
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

TEST_CASE("check_plan: raised bounds and tampered fields are rejected", "[check]") {
  const CheckedCase c{testing::chain(6, 3e5, 40000, 4000), testing::small_cluster(4, Bytes(1 << 20)), {.batch = 32}};
  const auto plan = planned(c);
  REQUIRE(plan);
  REQUIRE(plan->stages.size() > 1);
  REQUIRE(verdict_on(c, *plan).accepted());
  const Tampering rejected{c, *plan};
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
  rejected("parameter_bytes", [](Plan& p) { p.stages[0].parameter_bytes += Bytes(4); });
  rejected("parameter_elements", [](Plan& p) { p.stages[0].parameter_elements += 1; });
  rejected("not those that its atoms read", [](Plan& p) { p.stages[0].parameters.pop_back(); });
  rejected("not those of its atoms", [](Plan& p) { p.stages[0].ops.pop_back(); });
  rejected("in no stage", [](Plan& p) { p.stages[0].atoms.pop_back(); });
  rejected("in two stages", [](Plan& p) { p.stages[1].atoms.push_back(p.stages[0].atoms[0]); });
  rejected("has no atom 99", [](Plan& p) { p.stages[1].atoms.push_back(NodeId(99)); });
  rejected("back to stage 0", [](Plan& p) { std::swap(p.stages[0].atoms, p.stages[1].atoms); });
  rejected("runs two stages", [](Plan& p) { p.stages[0].mesh = p.stages[1].mesh; });
  rejected("outside the world", [](Plan& p) { p.stages[0].mesh = {Rank(7)}; });
  rejected("another", [](Plan& p) { p.device = "another"; });
  rejected("states model", [](Plan& p) { ++p.model; });
  rejected("states logits of class heads in chunks", [](Plan& p) { p.chunked_heads = true; });
  rejected("states single linear layers row-parallel", [](Plan& p) { p.layers_by_inputs = true; });
  rejected("5 ranks", [](Plan& p) { p.world = 5; });
  rejected("samples", [](Plan& p) { p.batch = 0; });
  rejected("batch: there are", [](Plan& p) { p.batch = std::int64_t{1} << 40; });
  rejected("step", [](Plan& p) {
    p.schedule = p.schedule == ScheduleKind::kGPipe ? ScheduleKind::kOneFOneB : ScheduleKind::kGPipe;
  });
  rejected("step", [](Plan& p) { p.microbatches = 2; });
  rejected("step", [](Plan& p) { p.batch += 4; });
}

TEST_CASE("check_plan: tampered memory optimizations are rejected", "[check]") {
  CheckedCase c = eight_atoms(ScheduleKind::kOneFOneB, 2, Recompute::kAlways);
  c.model.parameters[0].bytes += Bytes(400);  // of equal parameters half a stage's are as much as two of its buckets
  const auto plan = planned_by(c, true);
  REQUIRE(plan);
  REQUIRE(plan->zero == 2);
  REQUIRE(plan->stages[0].recomputed.size() > 1);
  REQUIRE(plan->stages[0].recomputed[0].size() + plan->stages[0].recomputed[1].size() < 8);
  REQUIRE(verdict_on(c, *plan).accepted());
  const Tampering rejected{c, *plan};
  rejected("no level 4", [](Plan& p) { p.zero = 4; });
  rejected("no level -1", [](Plan& p) { p.zero = -1; });
  for (const int level : {0, 1}) rejected("peak memory", [&](Plan& p) { p.zero = level; });
  rejected("gradient sums", [](Plan& p) { p.zero = 0; });
  rejected("step", [](Plan& p) { p.zero = 0; });
  rejected("step", [](Plan& p) { p.zero = 3; });
  rejected("is empty", [](Plan& p) { p.stages[0].recomputed.emplace_back(); });
  rejected("not in the stage", [](Plan& p) { p.stages[0].recomputed[0].push_back(p.stages[1].atoms[0]); });
  rejected("not in the stage", [](Plan& p) { p.stages[0].recomputed[0].push_back(NodeId(99)); });
  rejected("not in the stage", [](Plan& p) { p.stages[0].recomputed[0].push_back(NodeId::none()); });
  rejected("in one already", [](Plan& p) { p.stages[0].recomputed[1].push_back(p.stages[0].recomputed[0][0]); });
  rejected("in one already", [](Plan& p) { p.stages[0].recomputed[0].push_back(p.stages[0].recomputed[0][0]); });
  rejected("backward", [](Plan& p) { p.stages[0].recomputed.pop_back(); });
  rejected("step", [](Plan& p) { p.stages[0].recomputed.clear(), p.stages[1].recomputed.clear(); });
  rejected("peak memory", [](Plan& p) {  // fewer values are kept, but more is rebuilt at a time
    auto& segments = p.stages[0].recomputed;
    segments[0].insert(segments[0].end(), segments[1].begin(), segments[1].end());
    segments.erase(segments.begin() + 1);
  });
  rejected("peak memory", [](Plan& p) { p.stages[1].peak_memory += Bytes(1000); });
  rejected("parameter_bytes", [](Plan& p) { p.stages[1].parameter_bytes -= Bytes(4); });
  rejected("support no more", [](Plan& p) { raise(p.certificate.lower_bound); });
  c.model.graph[plan->stages[0].recomputed[0][0]].totals = Bytes(1000);
  c.request.options.microbatches = 1;
  const auto with_totals = planned_by(c, true);
  REQUIRE(with_totals);
  REQUIRE(verdict_on(c, *with_totals).accepted());
  Tampering{c, *with_totals}("add up once",
                             [&](Plan& p) { p.stages[0].recomputed.push_back({plan->stages[0].recomputed[0][0]}); });
}

TEST_CASE("check_plan: tampered offload is rejected", "[check]") {
  CheckedCase c = eight_atoms(ScheduleKind::kOneFOneB, 1, Recompute::kNever);
  c.cluster.host = testing::small_host(Bytes(4 << 20));
  c.request.options.offload = Offload::kOptimizer;
  const auto plan = planned_by(c, true);
  REQUIRE(plan);
  REQUIRE(plan->offload == Offload::kOptimizer);
  REQUIRE(plan->stages[0].host_memory > Bytes(0));
  REQUIRE(verdict_on(c, *plan).accepted());
  const Tampering rejected{c, *plan};
  rejected("offloads nothing", [](Plan& p) { p.offload = Offload::kNone; });
  rejected("step", [](Plan& p) { p.offload = Offload::kNone, p.host_memory = Bytes(0); });
  rejected("peak memory", [](Plan& p) { p.offload = Offload::kNone, p.host_memory = Bytes(0); });
  rejected("host memory", [](Plan& p) { p.stages[1].host_memory -= Bytes(1000); });
  rejected("of its host's", [](Plan& p) { p.host_memory = Bytes(1000); });
  rejected("there are", [](Plan& p) { p.host_memory = Bytes(1 << 30); });
  rejected("there are", [](Plan& p) { p.host_memory = Bytes(0); });
  rejected("peak memory",
           [](Plan& p) { p.gradient_copies = 1, p.optimizer_state_factor = 0, p.stages[0].peak_memory += Bytes(4); });
  rejected("host memory", [](Plan& p) { p.gradient_copies = 2; });
  rejected("step", [](Plan& p) { p.zero = 0; });
  CheckedCase cpus = c;  // the same memory
  cpus.cluster.host.reset();
  CHECK_FALSE(verdict_on(cpus, *plan).accepted());
  const auto in_place = planned_by(cpus, true);
  REQUIRE(in_place);
  CHECK(in_place->host_memory == Bytes(0));
  CHECK(in_place->stages[0].host_memory == Bytes(0));
  CHECK(in_place->stages[0].peak_memory > plan->stages[0].peak_memory);
  CHECK(verdict_on(cpus, *in_place).accepted());
  CHECK(verdict_on(cpus, *in_place).lower_bound == verdict_on(c, *plan).lower_bound);
}

TEST_CASE("check_plan: tampered interleaved and V stages are rejected", "[check]") {
  for (const ScheduleKind schedule : {ScheduleKind::kInterleaved, ScheduleKind::kZbV}) {
    const CheckedCase c = eight_atoms(schedule, 1, Recompute::kNever);
    const auto plan = planned_by(c, true);
    REQUIRE(plan);
    REQUIRE(plan->stages.size() >= 4);
    REQUIRE(verdict_on(c, *plan).accepted());
    const Tampering rejected{c, *plan};
    const bool is_v = schedule == ScheduleKind::kZbV;
    rejected(is_v ? "and back" : "pass all positions again",
             [](Plan& p) { std::swap(p.stages[0].mesh, p.stages[1].mesh); });
    rejected(is_v ? "pass all positions again" : "and back",
             [&](Plan& p) { p.schedule = is_v ? ScheduleKind::kInterleaved : ScheduleKind::kZbV; });
    for (const auto plain : {ScheduleKind::kGPipe, ScheduleKind::kOneFOneB, ScheduleKind::kZbH1})
      rejected("runs two stages", [&](Plan& p) { p.schedule = plain; });
    rejected("the same ranks in the same order", [](Plan& p) {
      p.stages[0].mesh = {p.stages[0].mesh.rank(1), p.stages[0].mesh.rank(0)};
    });
    rejected("the same ranks in the same order", [](Plan& p) { p.stages[0].mesh = {Rank(0)}; });
    rejected("the same ranks in the same order", [](Plan& p) { p.stages[0].mesh = {Rank(0), Rank(1), Rank(2)}; });
    rejected("has its own", [](Plan& p) { p.orders.resize(4); });
    rejected("orders of 0 ranks", [](Plan& p) { p.schedule = ScheduleKind::kSynthesised; });
    rejected("step", [](Plan& p) { p.microbatches = 5; });
    rejected("peak memory", [](Plan& p) { p.stages[2].peak_memory -= Bytes(1000); });
    rejected("step", [](Plan& p) { p.step = p.step * 0.999; });
    rejected("bubble", [](Plan& p) { p.bubble += 0.01; });
    rejected("support no more", [](Plan& p) { raise(p.certificate.lower_bound); });
    rejected("need", [](Plan& p) {  // every stage by itself has enough
      p.device_memory = std::ranges::max(p.stages, {}, &StagePlan::peak_memory).peak_memory + Bytes(1000);
    });
  }
  const auto two_layers = RecomputeOption::of_modules({"layer.0", "layer.5"});  // nothing of them is deferred
  const CheckedCase h1 = eight_atoms(ScheduleKind::kZbH1, 3, two_layers);
  const auto parted = planned_by(h1, true);
  REQUIRE(parted);
  REQUIRE(verdict_on(h1, *parted).accepted());
  Tampering{h1, *parted}("step", [](Plan& p) { p.schedule = ScheduleKind::kOneFOneB; });
}

TEST_CASE("check_plan: tampered or deadlocked orders are rejected", "[check]") {
  const CheckedCase c = eight_atoms(ScheduleKind::kSynthesised, 2, RecomputeOption::of_modules({"layer.0", "layer.5"}));
  const auto plan = planned_by(c, true);
  REQUIRE(plan);
  REQUIRE(plan->schedule == ScheduleKind::kSynthesised);
  REQUIRE(verdict_on(c, *plan).accepted());
  const Tampering rejected{c, *plan};
  rejected("orders of 3 ranks", [](Plan& p) { p.orders.pop_back(); });
  rejected("must name each of the", [](Plan& p) { p.orders[0].pop_back(); });
  rejected("must name each of the", [](Plan& p) { p.orders[3].clear(); });
  rejected("once as forward", [](Plan& p) { p.orders[0].push_back(p.orders[0].front()); });
  rejected("once as forward", [](Plan& p) { p.orders[0].push_back(p.orders[0].back()); });
  rejected("once as forward", [](Plan& p) { p.orders[0].erase(p.orders[0].begin()); });
  rejected("once as forward", [](Plan& p) { std::swap(p.orders[0].front(), p.orders[0].back()); });
  rejected("once as forward", [](Plan& p) { p.orders[0].front().kind = ActionKind::kSend; });
  rejected("must name each of the", [](Plan& p) { p.orders[0][0].microbatch = p.microbatches; });
  rejected("must name each of the", [](Plan& p) { p.orders[0][0].microbatch = -1; });
  rejected("must name each of the", [](Plan& p) { p.orders[0][0].stage = StageId(77); });
  rejected("must name each of the", [](Plan& p) { p.orders[0][0].stage = StageId::none(); });
  rejected("names stage 77, which that rank does not run", [](Plan& p) {
    p.orders[0].push_back({ActionKind::kForward, 0, StageId(77)});
  });
  rejected("once as forward", [](Plan& p) {
    p.orders[0].push_back({ActionKind::kForward, p.microbatches, p.orders[0][0].stage});
  });
  rejected("must name each of the", [](Plan& p) { ++p.microbatches; });
  rejected("has its own", [](Plan& p) { p.schedule = ScheduleKind::kInterleaved; });
  rejected("step", [](Plan& p) {
    for (auto& computes : p.orders)
      std::stable_partition(computes.begin(), computes.end(),
                            [](ComputeAction t) { return t.kind == ActionKind::kForward; });
  });
  rejected("peak memory", [](Plan& p) {  // one micro-batch after the other
    for (auto& computes : p.orders) std::ranges::stable_sort(computes, {}, &ComputeAction::microbatch);
  });
  const auto compute = [](ActionKind kind, int microbatch, int stage) {
    return ComputeAction{kind, microbatch, StageId(stage)};
  };
  const auto f = [&](int m, int s) { return compute(ActionKind::kForward, m, s); };
  const auto b = [&](int m, int s) { return compute(ActionKind::kBackward, m, s); };
  const Plan runs = in_orders(c, {{f(0, 0), b(0, 0), f(1, 0), b(1, 0)}, {f(0, 1), b(0, 1), f(1, 1), b(1, 1)}});
  CHECK(joined(verdict_on(c, runs).faults).find("wait for each other") == std::string::npos);
  CHECK(verdict_on(c, runs).step > Seconds{});
  const Plan waits = in_orders(c, {{f(0, 0), b(0, 0), f(1, 0), b(1, 0)}, {f(1, 1), b(1, 1), f(0, 1), b(0, 1)}});
  const auto verdict = verdict_on(c, waits);
  CAPTURE(joined(verdict.faults));
  REQUIRE(verdict.faults.size() == 1);
  CHECK(verdict.faults[0].find("wait for each other; stage 0 never gets what it needs for the backward") !=
        std::string::npos);
}

TEST_CASE("check_plan: ZeRO without replicas changes nothing", "[check]") {
  CheckedCase c = eight_atoms(ScheduleKind::kOneFOneB, 0, Recompute::kNever);
  c.model.graph[NodeId(7)].parameters = {ParameterId(0)};
  c.request.options.replicas = {1};
  const auto plain = planned_by(c, true);
  REQUIRE(plain);
  REQUIRE(plain->stages[0].reduction > Seconds{});
  for (const int level : {1, 2, 3}) {
    c.request.options.zero = level;
    auto plan = planned_by(c, true);
    REQUIRE(plan);
    CHECK(plan->zero == level);
    CHECK(plan->step == plain->step);
    CHECK(verdict_on(c, *plan).accepted());
    plan->zero = 0;
    CHECK(verdict_on(c, *plan).accepted());
  }
}

TEST_CASE("check_plan: the bound holds for deferred weight gradients", "[check]") {
  CheckedCase c{
      testing::chain(4, 10, 4, 4), testing::small_cluster(4), {.batch = 4}};  // nothing but starts of operators
  for (auto& level : c.cluster.levels) level.link = {Seconds(0), BytesPerSecond(1e30)};
  c.request.runtime = runtime_capabilities();
  c.request.options.stages = 4;
  c.request.options.microbatches = 1;
  c.request.options.schedule = ScheduleKind::kOneFOneB;
  const auto whole = planned_by(c, true);
  c.request.options.schedule = ScheduleKind::kZbH1;
  const auto parted = planned_by(c, true);
  REQUIRE(whole);
  REQUIRE(parted);
  CHECK(parted->step < 0.8 * whole->step);
  CHECK(parted->certificate.cases.front().kind == BoundKind::kPath);
  CHECK(parted->certificate.gap >= 0);
  CHECK(parted->certificate.gap < 0.01);  // the path is all there is
  CHECK(verdict_on(c, *parted).accepted());
  CHECK(whole->certificate.lower_bound == parted->certificate.lower_bound);
}

TEST_CASE("check_plan: a worse plan passes with a larger gap", "[check]") {
  CheckedCase c{testing::chain(6, 3e5, 4000, 4000), testing::small_cluster(4, Bytes(8 << 20)), {.batch = 32}};
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

TEST_CASE("check_plan: no certificate without economies of scale", "[check]") {
  CheckedCase c{testing::chain(3, 3e5, 4000, 4000), testing::small_cluster(2, Bytes(8 << 20)), {.batch = 8}};
  for (const NodeId atom : c.model.graph.nodes()) c.model.graph[atom].work.front().forward.flops.fixed = -1;
  auto plan = planned(c);
  REQUIRE(plan);
  CHECK(plan->certificate.lower_bound == Seconds{});
  CHECK(plan->certificate.cases.empty());
  CHECK(verdict_on(c, *plan).accepted());
  plan->certificate.lower_bound = Seconds(1e-9);
  CHECK_FALSE(verdict_on(c, *plan).accepted());
}
