#include <autopar/plan/report/run_report.hpp>

#include <catch_shim.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/testing/random_models.hpp>

using namespace autopar;
using testing::Dice;

namespace {

/// A drawn model on a drawn cluster, planned under drawn options; none if nothing fits.
struct Drawn {
  explicit Drawn(std::uint64_t seed, bool is_plain = false) {
    Dice dice(seed);
    model = testing::random_model(dice, 9);
    cluster = testing::small_cluster(dice(1, 5), Bytes(64 << 20));
    PlanRequest request;
    request.batch = dice(1, 30);
    request.runtime = runtime_capabilities();
    if (!is_plain) {
      request.options.zero = dice(0, 3);
      request.options.recompute = dice.chance(50) ? Recompute::kAlways : Recompute::kNever;
    }
    try {
      plan = plan_with_defaults(model, cluster, request);
    } catch (const Error&) {
    }
  }
  [[nodiscard]] ProfiledCost costs() const { return {cluster, {}}; }

  ModelProfile model;
  Cluster cluster;
  std::optional<Plan> plan;
};

}  // namespace

TEST_CASE("memory_over_step: fills up to the planned peak, never above it", "[report]") {
  int groups = 0, full = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const Drawn drawn(seed + 500);
    if (!drawn.plan) continue;
    CAPTURE(seed, to_text(*drawn.plan));
    const auto timeline = timeline_of(*drawn.plan, drawn.model, drawn.costs());
    const auto memory = memory_over_step(*drawn.plan, drawn.model, drawn.costs(), timeline);
    REQUIRE(!memory.empty());
    CHECK(std::ranges::is_sorted(memory, std::ranges::greater{}, &RankMemoryOverStep::peak));
    for (const RankMemoryOverStep& of : memory) {
      REQUIRE(!of.samples.empty());
      CHECK(std::ranges::is_sorted(of.samples, {}, &MemorySample::from));
      CHECK(of.samples.front().from == Seconds(0));
      CHECK(of.samples.back().from <= timeline.step);
      for (const MemorySample& sample : of.samples) {
        for (const Bytes bytes : sample.held) REQUIRE(bytes >= Bytes(0));
      }
      CHECK(of.most() / of.peak <= 1 + 1e-9);
      ++groups;
      full += of.most() / of.peak > 0.99 ? 1 : 0;
    }
  }
  CHECK(groups > 100);
  CHECK(full > groups * 8 / 10);
}

TEST_CASE("make_run_report: atoms, their time and their parameters", "[report]") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Drawn drawn(seed + 900, /*is_plain=*/true);
    if (!drawn.plan) continue;
    CAPTURE(seed, to_text(*drawn.plan));
    const ProfiledCost costs = drawn.costs();
    const RunReport report = make_run_report(*drawn.plan, drawn.model, &costs);
    REQUIRE(report.atoms.size() == drawn.model.graph.node_count());
    CHECK(report.notes.empty());
    CHECK(report.timeline.step == drawn.plan->step);
    CHECK_FALSE(report.measured);
    Bytes read{};
    for (std::size_t s = 0; s < drawn.plan->stages.size(); ++s) {
      Seconds sum{};
      for (const NodeId atom : drawn.plan->stages[s].atoms) {
        CHECK(report.atoms[atom.index()].stage == static_cast<int>(s));
        sum += report.atoms[atom.index()].seconds;
        read += report.atoms[atom.index()].parameters;
      }
      const StagePlan& stage = drawn.plan->stages[s];
      const bool exchanges =
          std::ranges::any_of(stage.atoms, [&](NodeId atom) { return drawn.model.graph[atom].totals > Bytes(0); });
      if (stage.mesh.tensor() == 1 && drawn.plan->zero < 2 && !exchanges)
        CHECK(sum.value() ==
              Approx(((stage.forward + stage.backward) * drawn.plan->microbatches).value()).margin(1e-9));
    }
    Bytes all{};
    for (const auto& parameter : drawn.model.parameters) all += parameter.bytes;
    CHECK(read <= all);
    for (const Advice& one : report.advice) CHECK(one.gain(drawn.plan->step) >= 0.001);
  }
}

TEST_CASE("make_run_report: without costs, of another model, with modules", "[report]") {
  const Drawn drawn(901, true);
  REQUIRE(drawn.plan);
  RunReport report = make_run_report(*drawn.plan, drawn.model, nullptr);
  CHECK(report.timeline.bars.empty());
  CHECK(report.notes.size() == 1);
  CHECK(plan_alone(*drawn.plan).atoms.empty());

  ModelProfile named = drawn.model;
  named.graph[NodeId(0)].path = "by.profile";
  CHECK(make_run_report(*drawn.plan, named, nullptr).atoms[0].path == "by.profile");
  CHECK(make_run_report(*drawn.plan, named, nullptr, {"m0", "m1"}).atoms[0].path == "m0");  // it is operator 0
  CHECK(make_run_report(*drawn.plan, named, nullptr, {"m0"}).atoms[1].path == named.graph[NodeId(1)].path);
  named.parameters.front().name = "layer.0.weight";
  named.graph[NodeId(0)].path = "layer.0.weight";
  CHECK(make_run_report(*drawn.plan, named, nullptr).atoms[0].path == "layer.0");

  Plan other = *drawn.plan;
  other.stages.front().atoms.pop_back();
  CHECK_THROWS_AS(make_run_report(other, drawn.model, nullptr), InvalidArgument);
}

TEST_CASE("make_run_report: other costs than the plan's are noted", "[report]") {
  const Drawn drawn(902, true);
  REQUIRE(drawn.plan);
  Plan plan = *drawn.plan;
  plan.step *= 2;
  const ProfiledCost costs = drawn.costs();
  const RunReport report = make_run_report(plan, drawn.model, &costs);
  REQUIRE(report.notes.size() == 1);
  CHECK_THAT(report.notes.front(), Catch::Matchers::Contains(readable(plan.step)));
}

TEST_CASE("set_measured: steps, memory and actions beside predictions", "[report]") {
  const Drawn drawn(903, true);
  REQUIRE(drawn.plan);
  const ProfiledCost costs = drawn.costs();
  RunReport report = make_run_report(*drawn.plan, drawn.model, &costs);
  MeasuredRun run;
  run.steps = 3;
  run.step = report.plan.step * 1.5;
  run.peak_memory = report.plan.stages.front().peak_memory * 2;
  for (Bar bar : report.timeline.bars) {
    if (bar.rank != Rank(0)) continue;
    bar.end = bar.begin + (bar.end - bar.begin) * 3;
    run.bars.push_back(bar);
  }
  set_measured(report, run);
  REQUIRE(report.measured);
  const auto find = [&](const std::string& what) {
    return std::ranges::find_if(report.comparisons, [&](const auto& one) { return one.what.starts_with(what); });
  };
  REQUIRE(find("step, call to call") != report.comparisons.end());
  CHECK(find("step, call to call")->error == Approx(0.5));
  CAPTURE(to_text(*drawn.plan), report.comparisons.size(), run.bars.size());
  REQUIRE(find("forward of stage") != report.comparisons.end());
  CHECK(find("forward of stage")->error == Approx(2));
  REQUIRE(find("peak memory of rank 0") != report.comparisons.end());
  CHECK(find("forward and backward") == report.comparisons.end());  // calls were not measured
  CHECK(find("reduce") == report.comparisons.end());                // its time includes waiting
  const auto count = report.comparisons.size();
  set_measured(report, run);
  CHECK(report.comparisons.size() == count);
}

TEST_CASE("advice_without_search: what does not fit, links, recomputation, bounds", "[report]") {
  const Drawn drawn(7, true);
  REQUIRE(drawn.plan);
  Plan plan = *drawn.plan;
  plan.runners_up = {{"a", "does not fit: needs 2 GiB of 1 GiB a rank", plan.step * 0.5},
                     {"b", "1.10 x slower: bubble", plan.step * 1.1},
                     {"c", "does not fit: needs 3 GiB", plan.step * 2}};
  plan.bubble = 0.25;
  plan.certificate.lower_bound = plan.step * 0.8;
  const auto timeline = timeline_of(plan, drawn.model, drawn.costs());
  const auto advice = advice_without_search(plan, drawn.model, drawn.costs(), timeline);
  REQUIRE(advice.size() >= 3);
  CHECK(advice.front().change == "more memory a rank");
  CHECK(advice.front().gain(plan.step) == Approx(1));
  CHECK(std::ranges::count(advice, "more memory a rank", &Advice::change) == 1);
  const auto waiting = std::ranges::find(advice, "ranks that never wait", &Advice::change);
  REQUIRE(waiting != advice.end());
  CHECK(waiting->is_bound);
  CHECK(waiting->gain(plan.step) == Approx(1 / 0.75 - 1));
  CHECK(std::ranges::is_sorted(advice, {}, &Advice::is_bound));

  const ProfiledCost faster = with_faster_links(drawn.costs(), 2);
  const auto &before = drawn.cluster.levels, &after = faster.cluster().levels;
  REQUIRE(before.size() == after.size());
  for (std::size_t l = 0; l < before.size(); ++l)
    CHECK(after[l].link.bandwidth.value() == Approx(2 * before[l].link.bandwidth.value()));
}
