#include "torch/planning/plan_builder.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/plan/plan_with_defaults.hpp>

#include <catch_shim.hpp>
#include <fake_costs.hpp>
#include <one_rank.hpp>
#include <temp_folder.hpp>

#include "unit/torch/passes/models_of_passes.hpp"

namespace {
namespace plan_builder_test {

using namespace autopar;

constexpr std::int64_t kBatch = 8;

/// A captured model with everything that a PlanBuilder is built from.
struct Fixture {
  Fixture() {
    test::BlockWithHead model;
    program.captured = test::captured_for_passes(model, model.arguments(kBatch), false);
    program.graph = program.captured;
    program.plan = algebra::analyze_batch(program.graph);
    programs.planned = &program;
    profile = programs.profile(c10::DeviceType::CPU);
  }

  Plan build(const std::optional<Plan>& given = {}, const planning::Optimizers& optimizers = {}) {
    planning::ReportFile report(options, optional_files);
    const planning::PlanFiles files(options, optional_files, report);
    planning::PlanBuilder builder(ranks, options, c10::Device(c10::kCPU), planner, costs, files);
    return builder.build(programs, profile, kBatch, optimizers, {}, given);
  }

  test::OneRank ranks;
  Options options;
  planning::OptionalFiles optional_files{Logger()};
  std::vector<PlanRequest> requests;
  PlanFunction planner = [this](const auto& model, const auto& own, const auto& cluster, const auto& request,
                                const auto& observer) {
    requests.push_back(request);
    return try_plan_with_defaults(model, own, cluster, request, observer);
  };
  test::FakeCosts costs;
  planning::ModelProgram program;
  planning::ModelPrograms programs;
  cost::GraphProfile profile;
};

TEST_CASE("PlanBuilder: one search makes the plan, without a World") {
  Fixture fixture;
  const Plan plan = fixture.build();
  CHECK(fixture.requests.size() == 1);
  CHECK(plan.stages.size() == 1);
  CHECK(plan.model == fixture.profile.model.hash);
  CHECK(plan.stages.front().ops.size() == fixture.program.graph.ops.size());
}

TEST_CASE("PlanBuilder: measures only where costs decide") {
  Fixture fixture;
  static_cast<void>(fixture.build());
  CHECK(fixture.costs.asked.empty());
  fixture.options.costs = CostChoice::kProfiled;
  static_cast<void>(fixture.build());
  CHECK(fixture.costs.asked == std::vector{kBatch});
}

TEST_CASE("PlanBuilder: a plan given or read is not searched for") {
  Fixture fixture;
  fixture.options.costs = CostChoice::kProfiled;
  const Plan plan = fixture.build();
  fixture.requests.clear();
  fixture.costs.asked.clear();
  CHECK(fixture.build(plan) == plan);
  const TempFolder folder;
  fixture.options.plan_file = (folder / "plan.json").string();
  write_plan(fixture.options.plan_file, plan);
  CHECK(fixture.build() == plan);
  CHECK(fixture.requests.empty());
  CHECK(fixture.costs.asked.empty());
  auto other = plan;
  ++other.model;
  CHECK_THROWS_AS(fixture.build(other), InvalidArgument);
}

TEST_CASE("PlanBuilder: optimizers say what a search may choose") {
  Fixture fixture;
  static_cast<void>(fixture.build());
  CHECK(fixture.requests.back().runtime.max_zero == 0);
  CHECK_FALSE(fixture.requests.back().runtime.offload);
  static_cast<void>(fixture.build({}, {true, 2.5}));
  CHECK(fixture.requests.back().runtime.max_zero == 3);
  CHECK(fixture.requests.back().options.optimizer_state_factor == 2.5);
}

TEST_CASE("PlanBuilder: what fits nowhere is thrown with its remedies") {
  Fixture fixture;
  fixture.costs.memory = Bytes(1000);
  try {
    static_cast<void>(fixture.build());
    FAIL("it fits");
  } catch (const InfeasiblePlan& error) {
    CHECK(error.needed() > Bytes(1000));
    CHECK_FALSE(error.remedy().empty());
  }
}

}  // namespace plan_builder_test
}  // namespace
