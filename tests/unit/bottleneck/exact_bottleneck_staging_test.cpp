#include <autopar/bottleneck/exact_bottleneck_staging.hpp>

#include <catch_shim.hpp>

#include <cmath>
#include <string>
#include <vector>

#include <autopar/bottleneck/certificate.hpp>
#include <autopar/plan/planner.hpp>

using namespace autopar;

namespace {

using Layers = Graph<std::string, int>;

/// A user's costs: every layer runs whole or recomputed, on one device or two.
struct LayerCosts {
  double seconds = 4;

  [[nodiscard]] std::vector<int> tensor_degrees() const { return {1, 2}; }
  [[nodiscard]] std::vector<int> replicas(int devices) const {
    return devices >= 2 ? std::vector<int>{1, 2} : std::vector<int>{1};
  }
  [[nodiscard]] int most_replicas() const { return 8; }
  [[nodiscard]] std::vector<NodeVariant> variants(const Layers& graph, NodeId node, int degree) const {
    const double time = seconds / degree + 0.5 * (degree - 1);
    NodeVariant whole{.name = graph[node], .work = time, .bytes_in_flight = 6, .bytes = 2};
    whole.in.assign(graph.in_edges(node).size(), 1);
    whole.out.assign(graph.out_edges(node).size(), 1);
    NodeVariant recomputed = whole;
    recomputed.work *= 1.3;
    recomputed.bytes_in_flight = 1;
    return {whole, recomputed};
  }
  [[nodiscard]] double work_share(int replicas) const { return 1.0 / replicas; }
  [[nodiscard]] double border_cost(int replicas) const { return 0.1 / replicas; }
  [[nodiscard]] double parameter_cost(int) const { return 0; }
};
static_assert(VariantCostModel<LayerCosts, Layers>);

Layers row(int layers) {
  Layers graph;
  for (int i = 0; i < layers; ++i) graph.add_node("layer " + std::to_string(i));
  for (int i = 0; i + 1 < layers; ++i) graph.add_edge(NodeId(i), NodeId(i + 1), 0);
  return graph;
}

/// A user's policy for variants: everything in one stage on one device.
struct OneStage {
  using policy_category = staging_policy_tag;
  int variant = 0;

  [[nodiscard]] BottleneckResult search(const SlowestStage& objective) const {
    VariantStage stage;
    for (const NodeId node : objective.tables().graph.nodes()) stage.nodes.push_back(node);
    stage.variants.assign(stage.nodes.size(), variant);
    BottleneckResult result;
    result.stages = {stage};
    result.seconds = objective.seconds(objective(result.stages)).value();
    return result;
  }
};

/// A user's objective, with a search of its own: nothing of it is known to the planner.
struct Longest {
  using policy_category = objective_policy_tag;
  using Solution = int;
  using Found = std::vector<int>;

  Longest(const Layers& graph, int scale, int limit)
      : nodes(static_cast<int>(graph.node_count()) * scale), most(limit) {}
  [[nodiscard]] double operator()(int solution) const { return solution; }
  [[nodiscard]] Seconds seconds(double terms) const { return Seconds(terms); }
  [[nodiscard]] bool fits(double terms) const { return terms <= most; }
  int nodes, most;
};
struct CountDown {
  using policy_category = staging_policy_tag;
  [[nodiscard]] std::vector<int> search(const Longest& objective) const {
    std::vector<int> found;
    for (int i = objective.nodes; i > 0; --i) {
      if (objective.fits(objective(i))) found.push_back(i);
    }
    return found;
  }
};
static_assert(Objective<Longest> && StagingPolicy<CountDown, Longest>);
static_assert(!StagingPolicy<CountDown> && !StagingPolicy<CountDown, SlowestStage>);
static_assert(StagingPolicy<ExactStaging> && !StagingPolicy<ExactStaging, SlowestStage>);
static_assert(std::same_as<Planner<>::Minimised, StepObjective>);
static_assert(std::same_as<Planner<SlowestStage>::StagingSearch, ExactBottleneckStaging>);

}  // namespace

TEST_CASE("Planner: plans a user's graph and costs, with a certificate") {
  const Layers graph = row(6);
  const DeviceLimits limits{4, 40};
  const BottleneckResult found = Planner<SlowestStage>{}.plan(graph, LayerCosts{}, limits);
  REQUIRE(!found.stages.empty());
  const SlowestStage objective(graph, LayerCosts{}, limits);
  const PipelineTerms terms = objective(found.stages);
  CHECK(objective.fits(terms));
  CHECK(terms.slowest.value() == Approx(found.seconds).epsilon(1e-12));
  const CertificateVerdict verdict =
      check_certificate(objective.tables(), {found.stages, found.seconds, found.lower_bound});
  CHECK(verdict.accepted);
  CHECK(verdict.gap <= 1e-8);
  // Four devices share 24 s; borders make it a little more.
  CHECK(found.seconds >= 6);
  CHECK(found.seconds < 7.5);
}

TEST_CASE("Planner: costs scale the plan, equal input gives equal plan") {
  const Layers graph = row(5);
  const auto once = Planner<SlowestStage>{}.plan(graph, LayerCosts{4}, DeviceLimits{3, 60});
  const auto twice = Planner<SlowestStage>{}.plan(graph, LayerCosts{4}, DeviceLimits{3, 60});
  CHECK(once.seconds == twice.seconds);
  CHECK(once.lower_bound == twice.lower_bound);
  CHECK(once.states == twice.states);
  REQUIRE(once.stages.size() == twice.stages.size());
  for (std::size_t s = 0; s < once.stages.size(); ++s) CHECK(once.stages[s].variants == twice.stages[s].variants);
}

TEST_CASE("Planner: the exact staging beats a user's staging policy") {
  const Layers graph = row(4);
  const DeviceLimits limits{2, 1000};
  std::vector<std::string> phases;
  Planner<OneStage, SlowestStage> planner;
  planner.observer = [&](const std::string& phase) { phases.push_back(phase); };
  const BottleneckResult mine = planner.plan(graph, LayerCosts{}, limits);
  CHECK(mine.seconds == 16);
  CHECK(phases.size() == 1);
  planner.staging.variant = 1;
  CHECK(planner.plan(graph, LayerCosts{}, limits).seconds == Approx(16 * 1.3));
  CHECK(Planner<SlowestStage>{}.plan(graph, LayerCosts{}, limits).seconds < mine.seconds);
}

TEST_CASE("Planner: accepts a user's objective and search") {
  CHECK(Planner<Longest, CountDown>{}.plan(row(3), 2, 4) == std::vector<int>{4, 3, 2, 1});
}

TEST_CASE("Planner: bad input is refused or proven infeasible") {
  const Layers graph = row(3);
  const auto plan = [&](const LayerCosts& costs, const DeviceLimits& limits) {
    return Planner<SlowestStage>{}.plan(graph, costs, limits);
  };
  CHECK_THROWS_WITH(plan({}, {0, 10}), Catch::Contains("at least one device"));
  CHECK_THROWS_WITH(plan({}, {1, std::nan("")}), Catch::Contains("memory"));
  CHECK_THROWS_WITH(plan({-4}, {1, 10}), Catch::Contains("negative"));
  CHECK_THROWS_WITH(plan({std::nan("")}, {1, 10}), Catch::Contains("not a number"));
  CHECK_THROWS_WITH(plan({}, {1, 0}), Catch::Contains("memory"));
  Layers circle = row(3);
  circle.add_edge(NodeId(2), NodeId(0), 0);
  CHECK_THROWS_WITH((Planner<SlowestStage>{}.plan(circle, LayerCosts{}, DeviceLimits{1, 10})),
                    Catch::Contains("cycle"));
  // Each node needs 3 bytes at least.
  const SlowestStage tight(graph, LayerCosts{}, DeviceLimits{8, 2.5});
  const BottleneckResult none = ExactBottleneckStaging{}.search(tight);
  CHECK(none.stages.empty());
  CHECK(std::isinf(none.lower_bound));
  REQUIRE(tight.too_large());
  CHECK(tight.too_large()->node == NodeId(0));
  CHECK(tight.too_large()->bytes == 3);
  CHECK_FALSE(SlowestStage(graph, LayerCosts{}, DeviceLimits{8, 3}).too_large());
}
