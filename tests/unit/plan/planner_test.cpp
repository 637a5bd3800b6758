#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/planner.hpp>

#include <catch_shim.hpp>

#include <chrono>
#include <map>

#include <autopar/cost/weighted.hpp>
#include <autopar/graph/algorithms/convexity.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/plan/verify/shape.hpp>
#include <autopar/testing/brute_force.hpp>
#include <autopar/testing/random_models.hpp>

using namespace autopar;
using testing::Dice;

namespace {

/// The tutorial's stack of linear layers, as a captured graph costs it.
ModelProfile tutorial(std::int64_t hidden, int layers, bool loss_mode = false) {
  const double h = static_cast<double>(hidden);
  ModelProfile model = testing::chain(layers, 1, (hidden * hidden + hidden) * 4, 4 * h);
  for (const NodeId node : model.graph.nodes()) {
    OpProfile& op = model.graph[node];
    op.work.front().forward = {{2 * h * h, 0}, {8 * h, 4 * h * h}, {0, 1}};
    op.work.front().backward = {{4 * h * h, 0}, {16 * h, 8 * h * h}, {0, 2}};
    op.saved = {4 * h, 0};
    op.workspace = {};
  }
  model.outputs = {{layers, {4 * h, 0}, NodeId(layers - 1)}};
  model.loss_mode = loss_mode;
  return model;
}

Cluster a100s(int devices) {
  Cluster cluster;
  cluster.name = "a100-40";
  cluster.devices = devices;
  cluster.device = {"A100-40",
                    Bytes(std::int64_t{40} << 30),
                    BytesPerSecond(1.555e12),
                    FlopsPerSecond(9.7e12),
                    FlopsPerSecond(19.5e12),
                    FlopsPerSecond(156e12),
                    FlopsPerSecond(312e12),
                    FlopsPerSecond(312e12),
                    0.6,
                    Seconds(5e-6)};
  cluster.levels = {{"NVLink", 8, {Seconds(5e-6), BytesPerSecond(250e9)}}};
  if (devices > 8) cluster.levels.push_back({"InfiniBand", devices, {Seconds(10e-6), BytesPerSecond(22e9)}});
  return cluster;
}

PlanRequest request_for(int world, std::int64_t batch, double factor) {
  PlanRequest request;
  request.world = world;
  request.batch = batch;
  request.options.optimizer_state_factor = factor;
  return request;
}

/// Every law that an accepted plan keeps, whatever made it.
void check_laws(const Plan& plan, const ModelProfile& model, const PlanRequest& request) {
  REQUIRE_FALSE(plan.stages.empty());
  REQUIRE(verify::fault_in_shape(model, plan).empty());
  const Staging staging = staging_of(plan, model.graph.node_count());
  std::vector<bool> used(static_cast<std::size_t>(plan.world), false);
  for (const StagePlan& stage : plan.stages) {
    CHECK_FALSE(stage.atoms.empty());
    NodeSet set(model.graph.node_count());
    for (const NodeId atom : stage.atoms) set.insert(atom);
    CHECK(is_convex(model.graph, set));
    CHECK(stage.peak_memory <= plan.device_memory);
    for (const Rank rank : stage.mesh.ranks()) {
      REQUIRE(rank.value() < plan.world);
      CHECK_FALSE(used[rank.index()]);
      used[rank.index()] = true;
    }
  }
  for (const EdgeId edge : model.graph.edges()) {
    CHECK(staging.stage_of[model.graph.source(edge).index()] <= staging.stage_of[model.graph.target(edge).index()]);
  }
  const Options& options = request.options;
  if (options.stages > 0) CHECK(staging.stages() == options.stages);
  if (!options.replicas.empty()) CHECK(staging.replicas == options.replicas);
  if (options.microbatches > 0) CHECK(plan.microbatches == options.microbatches);
  CHECK(plan.bubble >= 0);
  CHECK(plan.bubble < 1);
}

struct FirstHalf {
  using policy_category = staging_policy_tag;
  SearchResult search(const StepObjective& objective) const {
    SearchResult result{Candidates(objective.constraints().memory)};
    const auto n = objective.work().graph.node_count();
    Staging staging{std::vector<int>(n, 1), {1, 1}, 1, ScheduleKind::kOneFOneB};
    std::fill_n(staging.stage_of.begin(), n / 2, 0);
    result.candidates.offer({staging, objective(staging)});
    return result;
  }
};

/// What was measured, but for one operator that takes so many times as long.
struct DearOperator {
  using policy_category = cost_policy_tag;
  std::string name;
  double times = 1;

  struct Costs : ProfiledCost {
    static constexpr bool kCostsByValue = false;
    std::string name;
    double times;
    NodeCost node(const ModelGraph& graph, NodeId id, double samples) const {
      NodeCost cost = ProfiledCost::node(graph, id, samples);
      if (graph[id].name != name) return cost;
      for (Seconds* time : {&cost.forward, &cost.backward, &cost.backward_weight}) *time = *time * times;
      return cost;
    }
  };
  Costs costs(const ModelProfile&, const ProfiledCost& measured) const { return {{measured}, name, times}; }
};
static_assert(CostPolicy<DearOperator>);

}  // namespace

TEST_CASE("Planner: a small model is replicated, or this is runner-up") {
  for (const int world : {2, 8}) {
    const auto request = request_for(world, 64 * world, 0);
    const Plan plan = plan_with_defaults(tutorial(512, 10), a100s(8), request);
    check_laws(plan, tutorial(512, 10), request);
    const std::string replicated = "1 stage x " + std::to_string(world) + " replicas";
    const bool best = plan.stages.size() == 1 && plan.stages[0].mesh.replicas() == world;
    const bool named = std::any_of(plan.runners_up.begin(), plan.runners_up.end(), [&](const RunnerUp& other) {
      return other.summary.starts_with(replicated) && other.step >= plan.step && !other.reason.empty();
    });
    CHECK(best != named);
    CHECK_FALSE(plan.runners_up.empty());
  }
}

TEST_CASE("Planner: 2.5 billion parameters fit with SGD, not with Adam") {
  const ModelProfile model = tutorial(5000, 100);
  std::int64_t parameters = 0;
  for (const auto& p : model.parameters) parameters += p.bytes.value() / 4;
  CHECK(parameters == 2'500'500'000);

  const auto adam = request_for(8, 512, 2);
  const Plan with_adam = plan_with_defaults(model, a100s(8), adam);
  check_laws(with_adam, model, adam);
  CHECK(with_adam.stages.size() > 1);
  const auto replicated =
      std::find_if(with_adam.runners_up.begin(), with_adam.runners_up.end(),
                   [](const RunnerUp& other) { return other.summary.starts_with("1 stage x 8 replicas"); });
  REQUIRE(replicated != with_adam.runners_up.end());
  CHECK(replicated->reason.find("does not fit: needs 37.4 GiB of 36.0 GiB") != std::string::npos);

  auto sgd = request_for(8, 512, 0);
  const Plan with_sgd = plan_with_defaults(model, a100s(8), sgd);
  check_laws(with_sgd, model, sgd);
  CHECK(with_sgd.step <= with_adam.step);
  sgd.options.stages = 1;
  const Plan forced = plan_with_defaults(model, a100s(8), sgd);
  CHECK(forced.stages.size() == 1);
  auto one_stage = adam;
  one_stage.options.stages = 1;
  CHECK_THROWS_AS(plan_with_defaults(model, a100s(8), one_stage), InfeasiblePlan);
}

TEST_CASE("Planner: plans of random models obey the laws", "[laws]") {
  int planned = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 9000);
    const ModelProfile model = testing::random_model(dice, 14);
    Cluster cluster = testing::small_cluster(dice(1, 7), Bytes(dice(100, 3000) * 1000));
    auto request = request_for(0, dice(1, 64), dice(0, 4) / 2.0);
    request.options.max_microbatches = dice(1, 8);
    if (dice.chance(30))
      request.options.stages = dice(1, std::min<int>(cluster.devices, static_cast<int>(model.graph.node_count())));
    request.budget.states = 20'000;
    const Planner<> planner;
    try {
      const Plan plan = planner.plan(model, cluster, request);
      check_laws(plan, model, request);
      CHECK(plan == planner.plan(model, cluster, request));
      CHECK(to_text(plan) == to_text(planner.plan(model, cluster, request)));
      cluster.device.memory = cluster.device.memory * 2;
      if (plan.notes.empty() || !plan.notes.back().starts_with("searched to the end: no plan has")) continue;
      CHECK(planner.plan(model, cluster, request).step <= plan.step * (1 + 1e-12));
      ++planned;
    } catch (const InfeasiblePlan&) {
      ++refused;
    } catch (const CaptureError&) {
      ++refused;
    }
  }
  CHECK(planned > 150);
  CHECK(refused > 10);
}

TEST_CASE("Planner: scaled times scale the step", "[laws]") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 500);
    const ModelProfile model = testing::random_model(dice, 8);
    Cluster cluster = testing::small_cluster(dice(1, 5), Bytes(1) * (std::int64_t{1} << 40));
    const auto request = request_for(0, 24, 1);
    const Plan plan = plan_with_defaults(model, cluster, request);
    Cluster slower = cluster;
    slower.device.f32 = FlopsPerSecond(cluster.device.f32.value() / 4);
    slower.device.memory_bandwidth = BytesPerSecond(cluster.device.memory_bandwidth.value() / 4);
    slower.device.launch = cluster.device.launch * 4;
    for (auto& level : slower.levels) {
      level.link = {level.link.latency * 4, BytesPerSecond(level.link.bandwidth.value() / 4)};
    }
    CHECK(plan_with_defaults(model, slower, request).step.value() ==
          Approx(4 * plan.step.value()).epsilon(1e-9).margin(0));
  }
}

TEST_CASE("Planner: policies come in any order and keep their settings") {
  STATIC_REQUIRE(std::is_same_v<Planner<>::StagingSearch, ExactStaging>);
  STATIC_REQUIRE(std::is_same_v<Planner<NoCoarsening, testing::BruteForce>::StagingSearch, testing::BruteForce>);
  STATIC_REQUIRE(std::is_same_v<Planner<testing::BruteForce, NoCoarsening>::Coarsening, NoCoarsening>);
  const ModelProfile model = testing::chain(6, 1e6, 1000, 400);
  const Cluster cluster = testing::small_cluster(2);
  const auto request = request_for(2, 16, 0);
  const Plan exact = plan_with_defaults(model, cluster, request);
  const Plan brute = Planner<NoCoarsening, testing::BruteForce>{}.plan(model, cluster, request);
  CHECK(exact.step.value() == Approx(brute.step.value()).epsilon(1e-12));
  CHECK(Planner<UniformStaging>{}.plan(model, cluster, request).step >= exact.step);
  const Plan own = Planner<FirstHalf>{}.plan(model, cluster, request);
  CHECK(own.stages.size() == 2);
  CHECK(own.stages[0].atoms.size() == 3);
  std::vector<std::string> phases;
  Planner<> watched;
  watched.observer = [&](const std::string& phase) { phases.push_back(phase); };
  CHECK(watched.plan(model, cluster, request) == exact);
  CHECK(phases.size() == 4);
}

TEST_CASE("Planner: a cost policy overrides the costs of operators") {
  const ModelProfile model = testing::chain(8, 1e7, 1000, 400);
  const Cluster cluster = testing::small_cluster(2);
  auto request = request_for(2, 16, 0);
  request.options.stages = 2;
  const auto first_stage = [](const Plan& plan) { return plan.stages.front().atoms.size(); };
  const Plan even = plan_with_defaults(model, cluster, request);
  CHECK(first_stage(even) == 4);
  const Plan dear = Planner{DearOperator{.name = "2", .times = 100}}.plan(model, cluster, request);
  CHECK(first_stage(dear) == 3);  // as little as can be beside it
  CHECK(dear.step > 10 * even.step);
  CHECK(Planner{DearOperator{.name = "2", .times = 100}, NoCoarsening{}}.plan(model, cluster, request).step ==
        dear.step);

  const ProfiledCost measured(cluster, {});
  const Plan as_measured = plan_with_defaults(model, measured, cluster, request);
  CHECK(Planner{DearOperator{.name = "2", .times = 1}}.plan(model, measured, cluster, request) == as_measured);
  CHECK(Planner<CostsAsGiven>{}.plan(model, measured, cluster, request) == as_measured);
  CHECK(Planner{DearOperator{.name = "2", .times = 100}}.plan(model, measured, cluster, request) == dear);
}

TEST_CASE("Planner: a task graph without a network is partitioned") {
  struct Task {
    double seconds;
  };
  Graph<Task, double> tasks;
  for (int i = 0; i < 8; ++i) tasks.add_node({i < 4 ? 1e-3 : 3e-3});
  for (int i = 0; i < 6; ++i) tasks.add_edge(NodeId(i), NodeId(i + 2), 1000.0);
  const Cluster cluster = testing::small_cluster(4);
  const WeightedCost cost(
      cluster,
      [](const auto& g, NodeId t, double n) {
        return NodeCost{Seconds(g[t].seconds * n), {}, {}, {}};
      },
      [](const auto& g, EdgeId e) {
        return ValueProfile{e.value(), {g[e], 0}, false};
      });
  auto request = request_for(4, 16, 0);
  request.options.stages = 4;
  const Plan plan = Planner<>{}.plan(tasks, cost, cluster, request);
  CHECK(plan.stages.size() == 4);
  std::size_t atoms = 0;
  for (const auto& stage : plan.stages) atoms += stage.atoms.size();
  CHECK(atoms == 8);
  // 16 ms of tasks a sample, of which no stage can have less than a quarter.
  CHECK(plan.step.value() >= 16 * 4e-3);
  CHECK(plan.step.value() < 16 * 4e-3 * 1.6);
}

TEST_CASE("Planner: batch-mixing operators get one replica or an error") {
  ModelProfile model = testing::chain(5, 1e6, 1000, 400);
  model.graph[NodeId(2)].whole_batch = true;
  model.graph[NodeId(2)].name = "aten::std";
  auto request = request_for(4, 16, 0);
  const Plan plan = plan_with_defaults(model, testing::small_cluster(4), request);
  check_laws(plan, model, request);
  CHECK(plan.microbatches == 1);
  const Staging staging = staging_of(plan, 5);
  CHECK(staging.replicas[static_cast<std::size_t>(staging.stage_of[2])] == 1);
  const auto refused = [&](Options options) {
    request.options = std::move(options);
    try {
      (void)plan_with_defaults(model, testing::small_cluster(4), request);
      FAIL("accepted");
    } catch (const CaptureError& error) {
      CHECK(error.op() == "aten::std");
      CHECK(error.path() == "layer.2");
    }
  };
  refused({.microbatches = 2});
  refused({.replicas = {2, 2}});
  refused({.stages = 1, .replicas = {4}});
}

TEST_CASE("Planner: results outside the call make forwards run first") {
  ModelProfile model = testing::chain(6, 1e6, 1000, 400);
  model.loss_mode = false;
  auto request = request_for(2, 16, 0);
  request.options.stages = 2;
  CHECK(plan_with_defaults(model, testing::small_cluster(2), request).schedule == ScheduleKind::kGPipe);
  request.options.schedule = ScheduleKind::kOneFOneB;
  const Plan plan = plan_with_defaults(model, testing::small_cluster(2), request);
  CHECK(plan.schedule == ScheduleKind::kOneFOneB);
  CHECK(std::any_of(plan.notes.begin(), plan.notes.end(),
                    [](const auto& n) { return n.find("schedule = 1f1b") != std::string::npos; }));
}

TEST_CASE("Planner: ten billion parameters on 64 devices") {
  const auto start = std::chrono::steady_clock::now();
  const ModelProfile large = tutorial(10'000, 100, true);
  const auto request = request_for(64, 1024, 2);
  check_laws(plan_with_defaults(large, a100s(64), request), large, request);
  const ModelProfile chain = tutorial(2048, 1300, true);
  check_laws(plan_with_defaults(chain, a100s(64), request), chain, request);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  WARN("ten billion parameters and long chains planned for 64 devices in " << taken.count() << " s");
}
