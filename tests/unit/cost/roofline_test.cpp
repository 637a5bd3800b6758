#include <autopar/cost/roofline.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/precision.hpp>
#include <autopar/cost/weighted.hpp>

using namespace autopar;

namespace {

Cluster toy() {
  Cluster cluster;
  cluster.devices = 2;
  cluster.device.memory_bandwidth = BytesPerSecond(1e9);
  cluster.device.f32 = FlopsPerSecond(1e12);
  cluster.device.f16 = FlopsPerSecond(8e12);
  cluster.device.efficiency = 0.5;
  cluster.device.launch = Seconds(1e-6);
  cluster.levels = {{"bus", 2, {Seconds(1e-6), BytesPerSecond(1e9)}}};
  return cluster;
}

double seconds(OpClass op_class, DType dtype, Work work, double samples) {
  return roofline_time(toy().device, {}, op_class, dtype, work, samples).value();
}

}  // namespace

TEST_CASE("RooflineCost: maximum of compute and traffic, plus latency") {
  CHECK(seconds(OpClass::kMatmul, DType::kF32, {{1e9, 0}, {1, 0}, {0, 1}}, 4) == Approx(4e9 / 0.5e12 + 1e-6));
  CHECK(seconds(OpClass::kMatmul, DType::kF16, {{1e9, 0}, {1, 0}, {0, 1}}, 4) == Approx(4e9 / 4e12 + 1e-6));
  CHECK(seconds(OpClass::kConvolution, DType::kF32, {{1e9, 0}, {1, 0}, {}}, 1) == Approx(1e9 / 0.4e12));
  CHECK(seconds(OpClass::kMemory, DType::kF32, {{1, 0}, {1e6, 5e6}, {0, 3}}, 5) == Approx(10e6 / 0.5e9 + 3e-6));
  CHECK(seconds(OpClass::kView, DType::kF32, {{1e9, 0}, {1e9, 0}, {0, 3}}, 5) == 0);
}

TEST_CASE("at_precision: tf32 changes only the rate of float32 products") {
  Cluster cluster = toy();
  cluster.device.tf32 = FlopsPerSecond(4e12);
  CHECK(at_precision(cluster, Precision::kModule) == cluster);
  CHECK(at_precision(cluster, Precision::kBf16) == cluster);
  const Cluster faster = at_precision(cluster, Precision::kTf32);
  CHECK(faster.device.peak(DType::kF32).value() == 4e12);
  CHECK(faster.device.peak(DType::kF64) == cluster.device.peak(DType::kF64));
  CHECK(faster.device.peak(DType::kF16) == cluster.device.peak(DType::kF16));
}

TEST_CASE("RooflineCost: an atom sums its work, saved bytes, workspace") {
  ModelGraph graph;
  OpProfile op;
  const WorkItem item{OpClass::kMatmul, DType::kF32, {{1e9, 0}, {}, {0, 1}}, {{2e9, 0}, {}, {0, 2}}};
  op.work = {item, item};
  op.saved = {10, 3};
  op.workspace = {0, 77};
  const NodeId node = graph.add_node(op);
  const RooflineCost cost(toy());
  const NodeCost at3 = cost.node(graph, node, 3);
  CHECK(at3.forward.value() == Approx(2 * (3e9 / 0.5e12 + 1e-6)));
  CHECK(at3.backward.value() == Approx(2 * (6e9 / 0.5e12 + 2e-6)));
  CHECK(at3.saved == Bytes(33));
  CHECK(at3.workspace == Bytes(77));
  const NodeCost at4 = cost.node(graph, node, 4);
  CHECK(at4.forward > at3.forward);
  CHECK(at4.saved > at3.saved);
}

TEST_CASE("RooflineCost: update moves parameter, gradient, state once") {
  const RooflineCost cost(toy());
  CHECK(cost.update(Bytes(1'000'000), 0).value() == Approx(3e6 / 0.5e9));
  CHECK(cost.update(Bytes(1'000'000), 2).value() == Approx(7e6 / 0.5e9));
}

TEST_CASE("RooflineCost: host update crosses the link twice") {
  Cluster cluster = toy();
  cluster.host = Host{Bytes(1 << 30), BytesPerSecond(1e8), {Seconds(1e-5), BytesPerSecond(2e8)}};
  const RooflineCost cost(cluster);
  CHECK(cost.offloaded_update(Bytes(1'000'000), 0).value() == Approx(2 * (1e-5 + 1e6 / 2e8) + 3e6 / 0.5e8));
  CHECK(cost.offloaded_update(Bytes(1'000'000), 2).value() == Approx(2 * (1e-5 + 1e6 / 2e8) + 7e6 / 0.5e8));
  CHECK(cost.offloaded_update(Bytes(0), 2) == Seconds(0));
  const RooflineCost cpus(toy());  // both copies read and write the same memory
  CHECK(cpus.offloaded_update(Bytes(1'000'000), 0).value() == Approx((3e6 + 4e6) / 0.5e9));
}

TEST_CASE("WeightedCost: a task graph gives its costs as functions") {
  struct Task {
    double seconds;
  };
  using Tasks = Graph<Task, Bytes>;
  const auto node = [](const Tasks& g, NodeId t, double n) { return NodeCost{Seconds(g[t].seconds * n), {}, {}, {}}; };
  const auto value = [](const Tasks& g, EdgeId e) {
    return ValueProfile{e.value(), {static_cast<double>(g[e].value()), 0}, false};
  };
  const WeightedCost cost(toy(), node, value);
  STATIC_REQUIRE(CostModel<decltype(cost), Tasks>);
  Tasks tasks;
  const NodeId a = tasks.add_node({0.5}), b = tasks.add_node({1});
  const EdgeId edge = tasks.add_edge(a, b, Bytes(40));
  CHECK(cost.node(tasks, a, 4).forward == Seconds(2));
  CHECK(cost.value(tasks, edge).bytes.at(2) == 80);
  CHECK(cost.update(Bytes(100), 2) == Seconds(0));
}
