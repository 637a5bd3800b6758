#include <autopar/cost/profiled.hpp>

#include <catch_shim.hpp>

#include <random>

#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/text.hpp>

#include "two_nodes.hpp"

using namespace autopar;

namespace {

/// A chain of repeated layers: `kinds` structures in turn.
ModelProfile chain(int layers, int kinds) {
  ModelProfile profile;
  NodeId last;
  for (int i = 0; i < layers; ++i) {
    OpProfile op;
    op.name = "layer" + std::to_string(i);
    op.work = {{OpClass::kMatmul, DType::kF32, {{1e7, 0}, {1e4, 0}, {0, 1}}, {{2e7, 0}, {2e4, 0}, {0, 2}}}};
    op.saved = {1000, 0};
    op.workspace = {500, 100};
    op.structure = 100 + static_cast<std::uint64_t>(i % kinds);
    op.ops = {i};
    const NodeId node = profile.graph.add_node(op);
    if (i > 0) profile.graph.add_edge(last, node, {i, {400, 0}, true});
    last = node;
  }
  profile.inputs = {{0, {400, 0}, false, {NodeId(0)}}};
  profile.outputs = {{layers, {0, 4}, last}};
  return profile;
}

/// Of sizes from one to 1e9.
CostCurve straight(double each, double fixed) { return CostCurve({{1, fixed + each}, {1e9, fixed + 1e9 * each}}); }

MeasuredCosts sample_costs(double scale = 1) {
  MeasuredCosts costs;
  costs.atoms[100] = {straight(2e-5 * scale, 1e-5 * scale), straight(4e-5 * scale, 3e-5 * scale)};
  costs.atoms[101] = {straight(1e-5 * scale, 0), straight(3e-5 * scale, 0)};
  return costs;
}

std::vector<Rank> ranks(int count, int stride = 1) {
  std::vector<Rank> out;
  for (int i = 0; i < count; ++i) out.push_back(Rank(i * stride));
  return out;
}

}  // namespace

TEST_CASE("ProfiledCost: equals the roofline without measurements") {
  const auto model = chain(6, 2);
  const RooflineCost roofline(test::two_nodes_of_four());
  const ProfiledCost profiled(test::two_nodes_of_four(), {});
  for (const NodeId node : model.graph.nodes())
    CHECK(profiled.node(model.graph, node, 3) == roofline.node(model.graph, node, 3));
  for (const std::int64_t bytes : {0, 1000, 50'000'000}) {
    CHECK(profiled.transfer(Bytes(bytes), Rank(1), Rank(6)) == roofline.transfer(Bytes(bytes), Rank(1), Rank(6)));
    CHECK(profiled.all_reduce(Bytes(bytes), ranks(3)) == roofline.all_reduce(Bytes(bytes), ranks(3)));
    CHECK(profiled.least_all_reduce(Bytes(bytes), 3) == roofline.least_all_reduce(Bytes(bytes), 3));
  }
  PlanRequest request;
  request.world = 4;
  request.batch = 32;
  CHECK(plan_with_defaults(model, profiled, test::two_nodes_of_four(), request) ==
        plan_with_defaults(model, test::two_nodes_of_four(), request));
}

TEST_CASE("ProfiledCost: equal atoms share a measurement, else roofline") {
  const auto model = chain(6, 3);
  const ProfiledCost cost(test::two_nodes_of_four(), sample_costs());
  const RooflineCost roofline(test::two_nodes_of_four());
  const auto at = [&](int node) { return cost.node(model.graph, NodeId(node), 4); };
  CHECK(at(0).forward.value() == Approx(9e-5));
  CHECK(at(0).backward.value() == Approx(19e-5));
  CHECK(at(0) == at(3));
  CHECK(at(0).saved == Bytes(4000));  // by rule, as all memory
  CHECK(at(0).workspace == Bytes(2100));
  CHECK(at(2) == roofline.node(model.graph, NodeId(2), 4));
}

TEST_CASE("ProfiledCost: deferrable share of a backward as in roofline") {
  auto model = chain(2, 2);
  model.parameters = {{"weight", Bytes(400), true, 100}};
  model.graph[NodeId(0)].parameters = {ParameterId(0)};
  for (const double scale : {1e-6, 1.0, 1e6}) {
    const ProfiledCost cost(test::two_nodes_of_four(), sample_costs(scale));
    const auto node = cost.node(model.graph, NodeId(0), 4);
    CHECK(node.backward_weight.value() == Approx(0.5 * node.backward.value()));
    CHECK(make_workload(model, cost).node_costs(4).size() == 2);  // which refuses a part that is more than the whole
  }
}

TEST_CASE("ProfiledCost: a shard takes its share and what is not divided") {
  const auto model = chain(2, 2);
  auto costs = sample_costs(1e3);  // of which launches are little
  costs.atoms[100].undivided = Undivided{0.5, 0.25};
  const ProfiledCost cost(test::two_nodes_of_four(), costs);
  for (const double samples : {1.0, 4.0, 64.0}) {
    const auto half = cost.shard_share(model.graph, NodeId(0), samples, 0.5);
    CHECK(half.forward == Approx(0.75));
    CHECK(half.backward == Approx(0.625));
    const auto quarter = cost.shard_share(model.graph, NodeId(0), samples, 0.25);
    CHECK(quarter.forward == Approx(0.625));
    CHECK(quarter.backward == Approx(0.4375));
    const auto unmeasured = cost.shard_share(model.graph, NodeId(1), samples, 0.5);
    CHECK(unmeasured.forward == Approx(0.5).epsilon(0.01));
    CHECK(unmeasured.backward == Approx(0.5).epsilon(0.01));
  }
  costs = sample_costs(1e-9);  // which are shorter than their launches
  costs.atoms[100].undivided = Undivided{0.5, 0.25};
  const ProfiledCost of_launches(test::two_nodes_of_four(), costs);
  CHECK(of_launches.shard_share(model.graph, NodeId(0), 4, 0.5).forward == 1);
  CHECK(of_launches.shard_share(model.graph, NodeId(0), 4, 0.5).backward == 1);
}

TEST_CASE("atoms_to_measure: repeated layers are measured once") {
  const auto model = chain(96, 4);
  CHECK(atoms_to_measure(model.graph) == std::vector<NodeId>{NodeId(0), NodeId(1), NodeId(2), NodeId(3)});
  CHECK(atoms_to_measure(model.graph, sample_costs()) == std::vector<NodeId>{NodeId(2), NodeId(3)});
}

TEST_CASE("atoms_to_measure: other sample counts are measured again") {
  const auto model = chain(4, 2);
  auto costs = sample_costs();
  costs.atoms.at(100).samples = {8, 64};
  const auto lacking = [&](SampleRange samples) { return atoms_to_measure(model.graph, costs, samples).size(); };
  CHECK(lacking({8, 64}) == 0);
  CHECK(lacking({16, 32}) == 0);
  CHECK(lacking({16, 65}) == 1);
  CHECK(lacking({7, 64}) == 1);
}

TEST_CASE("ProfiledCost: a set of nodes costs the sum of its nodes") {
  const auto model = chain(12, 2);
  const ProfiledCost cost(test::two_nodes_of_four(), sample_costs());
  const Workload work = make_workload(model, cost);
  std::vector<BlockId> block_of;
  for (int i = 0; i < 12; ++i) block_of.push_back(BlockId(i / 5));
  const Partition blocks(block_of);
  const Workload coarse = contracted(work, blocks);
  for (const std::int64_t samples : {1, 2, 7}) {
    Seconds fine_forward, fine_backward, coarse_forward, coarse_backward;
    Bytes fine_saved, coarse_saved;
    for (const NodeId node : model.graph.nodes()) {
      const auto one = cost.node(model.graph, node, static_cast<double>(samples));
      fine_forward += one.forward;
      fine_backward += one.backward;
      fine_saved += one.saved;
    }
    for (const auto& one : coarse.node_costs(samples)) {
      coarse_forward += one.forward;
      coarse_backward += one.backward;
      coarse_saved += one.saved;
    }
    CHECK(coarse_forward.value() == Approx(fine_forward.value()).epsilon(1e-13));
    CHECK(coarse_backward.value() == Approx(fine_backward.value()).epsilon(1e-13));
    CHECK(coarse_saved == fine_saved);
  }
}

TEST_CASE("ProfiledCost: updates use the optimizer of nearest state") {
  MeasuredCosts costs;
  costs.updates[0] = CostCurve({{500, 2e-6}, {1000, 3e-6}, {1e6, 1e-3}});
  costs.updates[2] = CostCurve({{500, 9e-6}, {1000, 10e-6}, {1e6, 4e-3}});
  const ProfiledCost cost(test::two_nodes_of_four(), costs, Bytes(1000));
  CHECK(cost.update(Bytes(10'000), 0).value() == Approx(10 * 3e-6));
  CHECK(cost.update(Bytes(10'000), 0.9).value() == Approx(10 * 3e-6));
  CHECK(cost.update(Bytes(10'000), 2).value() == Approx(10 * 10e-6));
  CHECK(cost.update(Bytes(500), 7).value() == Approx(0.5 * 10e-6));
  CHECK(cost.update(Bytes(0), 2) == Seconds(0));
  const auto nothing = ProfiledCost(test::two_nodes_of_four(), {});
  CHECK(nothing.update(Bytes(10'000), 2) == RooflineCost(test::two_nodes_of_four()).update(Bytes(10'000), 2));
  CHECK_THROWS_AS(ProfiledCost(test::two_nodes_of_four(), costs, Bytes(0)), InvalidArgument);
}

TEST_CASE("ProfiledCost: host update is copies plus optimizer") {
  MeasuredCosts costs;
  costs.host.copy = CostCurve({{10, 1e-5 + 10 * 1e-10}, {1e6, 1e-5 + 1e6 * 1e-10}});
  Cluster cluster = test::two_nodes_of_four();
  cluster.host = Host{Bytes(1 << 30), BytesPerSecond(1e10), {Seconds(2e-5), BytesPerSecond(5e9)}};
  CHECK(ProfiledCost(cluster, costs).offloaded_update(Bytes(10'000), 2) ==
        RooflineCost(cluster).offloaded_update(Bytes(10'000), 2));
  costs.host.updates[2] = CostCurve({{1000, 10e-6}});
  const ProfiledCost cost(cluster, costs, Bytes(1000));
  CHECK(cost.offloaded_update(Bytes(10'000), 2).value() == Approx(2 * (1e-5 + 10'000 * 1e-10) + 10 * 10e-6));
  CHECK(cost.offloaded_update(Bytes(0), 2) == Seconds(0));
}

TEST_CASE("ProfiledCost: scaled measurements scale times alone") {
  const auto model = chain(4, 2);
  const ProfiledCost cost(test::two_nodes_of_four(), sample_costs()),
      slower(test::two_nodes_of_four(), sample_costs(4));
  for (const NodeId node : model.graph.nodes()) {
    const auto a = cost.node(model.graph, node, 5), b = slower.node(model.graph, node, 5);
    CHECK(b.forward.value() == Approx(4 * a.forward.value()));
    CHECK(b.backward.value() == Approx(4 * a.backward.value()));
    CHECK(b.saved == a.saved);
    CHECK(b.workspace == a.workspace);
  }
}

TEST_CASE("ProfiledCost: non-negative, monotone in samples and bytes") {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> time(0, 1e-3);
  const auto model = chain(3, 3);
  for (int trial = 0; trial < 100; ++trial) {
    MeasuredCosts costs;
    const auto noisy = [&] {
      std::vector<MeasuredPoint> points;
      for (const double x : {1.0, 4.0, 16.0}) points.push_back({x, time(random)});
      return CostCurve(points);
    };
    for (const std::uint64_t structure : {100, 101, 102}) costs.atoms[structure] = {noisy(), noisy()};
    const auto noisy_transfer = [&] {
      return CostCurve({{1, time(random)}, {10'000, time(random)}, {20'000, time(random)}});
    };
    costs.links.messages[4] = noisy_transfer();
    costs.links.all_reduces[{8, 2}] = noisy_transfer();
    const ProfiledCost cost(test::two_nodes_of_four(), costs);
    NodeCost last;
    Seconds message, sum;
    for (int samples = 1; samples < 40; ++samples) {
      const auto now = cost.node(model.graph, NodeId(trial % 3), samples);
      CHECK(now.forward >= last.forward);
      CHECK(now.backward >= last.backward);
      CHECK(now.saved >= last.saved);
      last = now;
      const Bytes bytes(samples * 1000);
      CHECK(cost.transfer(bytes, Rank(0), Rank(1)) >= message);
      CHECK(cost.all_reduce(bytes, ranks(2, 4)) >= sum);
      message = cost.transfer(bytes, Rank(0), Rank(1));
      sum = cost.all_reduce(bytes, ranks(2, 4));
    }
  }
}

TEST_CASE("ProfiledCost: links use their class, else the cluster file") {
  MeasuredCosts costs;
  costs.links.messages[4] = straight(1e-9, 5e-6);
  costs.links.all_reduces[{4, 2}] = straight(2e-9, 8e-6);
  costs.links.all_reduces[{4, 4}] = straight(4e-9, 30e-6);
  const ProfiledCost cost(test::two_nodes_of_four(), costs);
  const RooflineCost roofline(test::two_nodes_of_four());
  const Bytes bytes(1'000'000);
  CHECK(cost.transfer(bytes, Rank(2), Rank(2)) == Seconds(0));
  CHECK(cost.transfer(bytes, Rank(4), Rank(7)).value() == Approx(1e-3 + 5e-6));
  CHECK(cost.transfer(bytes, Rank(3), Rank(4)) == roofline.transfer(bytes, Rank(3), Rank(4)));
  CHECK(cost.all_reduce(bytes, ranks(1)) == Seconds(0));
  CHECK(cost.all_reduce(bytes, ranks(2)).value() == Approx(2e-3 + 8e-6));
  CHECK(cost.all_reduce(bytes, ranks(4)).value() == Approx(4e-3 + 30e-6));
  CHECK(cost.all_reduce(bytes, ranks(3)).value() == Approx((2.0 / 3) / (1.0 / 2) * 2e-3 + 2 * 8e-6));
  CHECK(cost.all_reduce(bytes, ranks(5)) == roofline.all_reduce(bytes, ranks(5)));
  CHECK_THROWS_AS(cost.transfer(bytes, Rank(0), Rank(8)), InvalidArgument);
}

TEST_CASE("ProfiledCost: contention as measured, else the roofline's") {
  MeasuredCosts costs;
  const auto contention = [&](int count) {
    return ProfiledCost(test::two_nodes_of_four(), costs).contention(ranks(count));
  };
  const auto least = [&](int count) { return ProfiledCost(test::two_nodes_of_four(), costs).least_contention(count); };
  CHECK(contention(2) == kOneAfterTheOther);  // its devices are CPUs
  CHECK(least(2) == kOneAfterTheOther);
  costs.links.contention[{4, 2}] = {0.4, 0.3};
  costs.links.contention[{8, 8}] = {0.5, 0.2};
  CHECK(contention(3) == Contention{0.4, 0.3});
  CHECK(contention(6) == Contention{0.5, 0.2});
  CHECK(least(2) == Contention{0.4, 0.2});
  CHECK(least(6) == Contention{0.5, 0.2});
}

TEST_CASE("ProfiledCost: messages delay computation as on the slowest class") {
  MeasuredCosts costs;
  const auto delay = [&] { return ProfiledCost(test::two_nodes_of_four(), costs).message_delay(); };
  CHECK(delay() == 0);
  costs.links.message_delays[4] = 0.25;
  costs.links.message_delays[8] = 0.125;
  CHECK(delay() == 0.25);
}

TEST_CASE("ProfiledCost: passes over memory at the rate of updates") {
  MeasuredCosts costs;
  CHECK(ProfiledCost(test::two_nodes_of_four(), costs).passes(Bytes(1000)) == Seconds{});
  // Reads three values and writes two for each element; small tensors take more for each.
  costs.updates[1] = CostCurve({{1e4, 1e-6}, {1e6, 8e-6}, {2e6, 8e-6 + 1e6 * 5e-12}});
  CHECK(ProfiledCost(test::two_nodes_of_four(), costs).passes(Bytes(1000)).value() == Approx(1e-9));
}

TEST_CASE("ProfiledCost: messages and all-reduces never below the bound") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> factor(0.1, 10);
  for (int trial = 0; trial < 300; ++trial) {
    MeasuredCosts costs;
    const auto line = [&] {
      const double latency = 3e-6 * factor(random), slope = 1e-10 * factor(random);
      return CostCurve({{1e3, latency}, {1e5, latency + 1e5 * slope * factor(random)}, {1e7, latency + 1e7 * slope}});
    };
    if (random() % 2 == 0) costs.links.messages[4] = line();
    if (random() % 2 == 0) costs.links.messages[8] = line();
    for (const int span : {4, 8}) {
      for (const int group : {2, 4, 8}) {
        if (group <= span && random() % 2 == 0) costs.links.all_reduces[{span, group}] = line();
      }
    }
    const ProfiledCost cost(test::two_nodes_of_four(), costs);
    std::vector<Rank> some;
    for (int r = 0; r < 8; ++r) {
      if (random() % 2 == 0) some.push_back(Rank(r));
    }
    if (some.size() < 2) continue;
    const Bytes bytes(static_cast<std::int64_t>(random() % 100'000'000)), part(bytes.value() / 3);
    const double bound = cost.least_all_reduce(bytes, static_cast<int>(some.size())).value();
    CHECK(cost.all_reduce(bytes, some).value() >= bound * (1 - 1e-12));
    CHECK((cost.all_reduce(part, some) + cost.all_reduce(bytes - part, some)).value() >= bound * (1 - 1e-12));
    CHECK(cost.transfer(bytes, some.front(), some.back()) >= cost.least_transfer(bytes));
  }
}

TEST_CASE("Planner: follows measured costs") {
  const auto model = chain(8, 8);
  MeasuredCosts costs;
  for (std::uint64_t i = 0; i < 8; ++i) {
    const double seconds = i == 0 ? 70e-3 : 10e-3;  // the first layer takes as long as the others together
    costs.atoms[100 + i] = {straight(seconds, 0), straight(2 * seconds, 0)};
  }
  PlanRequest request;
  request.world = 2;
  request.batch = 64;
  request.options.stages = 2;
  const auto plan =
      plan_with_defaults(model, ProfiledCost(test::two_nodes_of_four(), costs), test::two_nodes_of_four(), request);
  REQUIRE(plan.stages.size() == 2);
  CHECK(plan.stages[0].atoms.size() == 1);
  CHECK(plan_with_defaults(model, test::two_nodes_of_four(), request).stages[0].atoms.size() == 4);
}
