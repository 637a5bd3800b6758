#include <autopar/plan/planner.hpp>
#include <autopar/testing/random_models.hpp>

#include <catch_shim.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// What planning may spend, where branches leave much to search.
namespace effort_test {

using namespace autopar;

/// A mixture of experts whose gates are dense: y = head(Σ gate_e · expert_e(x)), experts of two linear layers each,
/// which tensor shards can slice.
class Mixture {
 public:
  explicit Mixture(int experts) {
    const auto in = add("in", kWidth * kWidth, {});
    const auto gate = add("softmax", 0, {add("gate", kWidth * experts, {in})});
    NodeId sum = NodeId::none();
    for (int e = 0; e < experts; ++e) {
      const auto up = add("up", kWidth * kHidden, {in}), relu = add("relu", 0, {up});
      const auto down = add("down", kWidth * kHidden, {relu});
      TensorRegion region;
      region.atoms = {up, relu, down};
      for (const auto atom : {up, down}) {
        for (const auto parameter : model.graph[atom].parameters) region.parameters.push_back(parameter);
      }
      region.units = kHidden;
      region.even = false;
      region.forward = region.backward = {4.0 * kWidth, 0};
      region.forward_calls = region.backward_calls = 1;
      model.tensor_regions.push_back(region);
      const auto weighted = add("mul", 0, {down, gate});
      sum = sum.valid() ? add("add", 0, {sum, weighted}) : weighted;
    }
    const auto head = add("head", kWidth * 10, {sum});
    model.inputs = {{1000, {4.0 * kWidth, 0}, false, {in}}};
    model.outputs = {{head.value(), {0, 8}, head}};
    model.hash = 7;
  }

  ModelProfile model;

 private:
  static constexpr int kWidth = 16, kHidden = 32;

  NodeId add(const std::string& name, int elements, const std::vector<NodeId>& from) {
    std::vector<ParameterId> parameters;
    if (elements > 0) {
      parameters.emplace_back(static_cast<int>(model.parameters.size()));
      model.parameters.push_back({name, Bytes(4 * elements), true, elements});
    }
    auto op = testing::atom(name, elements > 0 ? 2.0 * elements : kWidth, 4.0 * kWidth, parameters);
    op.ops = {static_cast<std::int32_t>(model.graph.node_count())};
    const auto node = model.graph.add_node(std::move(op));
    for (const auto before : from) model.graph.add_edge(before, node, {before.value(), {4.0 * kWidth, 0}, true});
    return node;
  }
};

Cluster ranks_of_a_host(int ranks) {
  Cluster cluster;
  cluster.devices = ranks;
  cluster.device.memory = Bytes(std::int64_t{6} << 30);
  cluster.levels = {{"host", ranks, {Seconds(2e-6), BytesPerSecond(5e9)}}};
  return cluster;
}

PlanRequest request(int ranks, std::int64_t batch) {
  PlanRequest out;
  out.world = ranks;
  out.batch = batch;
  out.runtime = runtime_capabilities();
  return out;
}

TEST_CASE("Planner: a tiny mixture of experts needs few states") {
  for (const int ranks : {3, 4}) {
    for (const int experts : {4, 8}) {
      INFO(ranks << " ranks, " << experts << " experts");
      const Mixture mixture(experts);
      std::int64_t states = 0;
      Planner<> planner;
      planner.observer = [&](const std::string& phase) {
        if (phase.starts_with("searched ")) states = std::stoll(phase.substr(9));
      };
      (void)planner.plan(mixture.model, ranks_of_a_host(ranks), request(ranks, 96));
      CHECK(states > 0);
      CHECK(states <= 800'000);  // some tenths of a microsecond each
    }
  }
}

TEST_CASE("Planner: a far too large batch names micro-batches that fit") {
  const Mixture mixture(2);
  auto cluster = ranks_of_a_host(2);
  auto asked = request(2, std::int64_t{1} << 35);
  asked.options.tensor_parallel = 1;
  std::string said;
  try {
    (void)Planner<>().plan(mixture.model, cluster, asked);
  } catch (const InfeasiblePlan& error) {
    said = error.what();
  }
  const auto at = said.find("microbatches = ");
  REQUIRE(at != std::string::npos);
  asked.options.microbatches = std::stoi(said.substr(at + 15));
  asked.options.max_microbatches = asked.options.microbatches;
  CHECK_NOTHROW(Planner<>().plan(mixture.model, cluster, asked));
}

}  // namespace effort_test
