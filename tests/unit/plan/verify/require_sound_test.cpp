#include <autopar/plan/verify/require_sound.hpp>

#include <catch_shim.hpp>

#include <functional>
#include <string>

#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/testing/random_models.hpp>

using namespace autopar;

namespace require_sound_test {

PlanRequest request_of(ScheduleKind schedule, int stages) {
  PlanRequest request;
  request.batch = 32;
  request.runtime = runtime_capabilities();
  request.options.schedule = schedule;
  request.options.stages = stages;
  request.options.microbatches = 4;
  return request;
}

std::string refusal(const ModelProfile& model, const Plan& plan) {
  try {
    require_sound(model, plan);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("require_sound: accepts the planner's plans of all schedules", "[check]") {
  const ModelProfile model = testing::chain(8, 3e5, 40000, 4000);
  const Cluster cluster = testing::small_cluster(4);
  for (const auto kind : kScheduleKinds) {
    const Plan plan = plan_with_defaults(model, cluster, request_of(kind, 2));
    CAPTURE(to_string(kind));
    CHECK(refusal(model, plan).empty());
  }
  ModelProfile own_loss = model;
  own_loss.loss_mode = false;
  CHECK(refusal(own_loss, plan_with_defaults(own_loss, cluster, request_of(ScheduleKind::kGPipe, 2))).empty());
}

TEST_CASE("require_sound: an unsound plan is refused by field", "[check]") {
  const ModelProfile model = testing::chain(6, 3e5, 40000, 4000);
  const Plan good = plan_with_defaults(model, testing::small_cluster(4), request_of(ScheduleKind::kOneFOneB, 2));
  REQUIRE(good.stages.size() == 2);
  const auto refused = [&](const std::string& field, const std::function<void(Plan&)>& damage) {
    Plan plan = good;
    damage(plan);
    CAPTURE(field, refusal(model, plan));
    CHECK(refusal(model, plan).starts_with("the plan: " + field + ": "));
  };
  refused("stages", [](Plan& p) { p.stages.clear(); });
  refused("world", [](Plan& p) { p.world = 0; });
  refused("zero", [](Plan& p) { p.zero = 4; });
  refused("microbatches", [](Plan& p) { p.batch = p.microbatches = 1 << 30; });
  refused("host_memory_bytes", [](Plan& p) { p.host_memory = Bytes(7); });
  refused("stages[0].atoms", [](Plan& p) { p.stages[0].atoms.clear(); });
  refused("stages[0].atoms", [](Plan& p) { p.stages[0].atoms.push_back(p.stages[0].atoms[0]); });
  refused("stages[0].atoms", [](Plan& p) { std::reverse(p.stages[0].atoms.begin(), p.stages[0].atoms.end()); });
  refused("stages[1].atoms", [](Plan& p) { p.stages[1].atoms.push_back(p.stages[0].atoms[0]); });
  refused("stages[1].atoms", [](Plan& p) { p.stages[1].atoms.push_back(NodeId(6)); });
  refused("stages[].atoms", [](Plan& p) { p.stages[1].atoms.pop_back(); });
  refused("stages[1].atoms", [](Plan& p) { std::swap(p.stages[0].atoms, p.stages[1].atoms); });
  refused("stages[0].ops", [](Plan& p) { p.stages[0].ops.push_back(1000); });
  refused("stages[1].ops", [](Plan& p) { p.stages[1].ops.insert(p.stages[1].ops.begin(), 0); });
  refused("stages[0].ops", [](Plan& p) { p.stages[0].ops.clear(); });
  refused("stages[0].parameters", [](Plan& p) { p.stages[0].parameters.pop_back(); });
  refused("stages[0].parameter_bytes", [](Plan& p) { p.stages[0].parameter_bytes += Bytes(1); });
  refused("stages[0].parameter_elements", [](Plan& p) { p.stages[0].parameter_elements += 1; });
  refused("stages[0].ranks", [](Plan& p) { p.stages[0].mesh = {}; });
  refused("stages[0].ranks", [](Plan& p) { p.stages[0].mesh = {Rank(9)}; });
  refused("stages[1].ranks", [](Plan& p) { p.stages[1].mesh = p.stages[0].mesh; });
  refused("stages[0].recomputed", [](Plan& p) { p.stages[0].recomputed = {{p.stages[1].atoms[0]}}; });
  refused("stages[0].recomputed", [](Plan& p) {
    const NodeId first = p.stages[0].atoms[0];
    p.stages[0].recomputed = {{first}, {p.stages[0].atoms[1], first}};
  });
  refused("orders", [](Plan& p) { p.orders.resize(4); });
}

TEST_CASE("require_sound: deadlocked orders are refused", "[check]") {
  const ModelProfile model = testing::chain(6, 3e5, 40000, 4000);
  Plan plan = plan_with_defaults(model, testing::small_cluster(2), [] {
    auto request = request_of(ScheduleKind::kSynthesised, 2);
    request.options.replicas = {1};
    return request;
  }());
  REQUIRE(plan.orders.size() == 2);
  CHECK(refusal(model, plan).empty());
  auto& order = plan.orders[static_cast<std::size_t>(plan.stages.back().mesh.rank(0).value())];
  for (ComputeAction& compute : order)
    compute.microbatch = plan.microbatches - 1 - compute.microbatch;  // the last stage's, the other way round
  CAPTURE(refusal(model, plan));
  CHECK_FALSE(refusal(model, plan).empty());
}

}  // namespace require_sound_test
