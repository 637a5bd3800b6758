// How long planning takes: chains of operators, with and without repetition, on growing clusters. One JSON line a case.
//
//   plan_time [most operators] [most devices]
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include <autopar/plan/planner.hpp>

namespace ap = autopar;

namespace {

/// A chain of matrix products with parameters; `repeated` layers are all equal, others vary by a factor of up to 4.
ap::ModelProfile chain(int operators, bool repeated) {
  ap::ModelProfile model;
  for (int i = 0; i < operators; ++i) {
    const double hidden = repeated ? 1024 : 512.0 + 1536.0 * ((i * 7919) % 101) / 100;
    const double weights = 4 * hidden * hidden;
    model.parameters.push_back({"p" + std::to_string(i), ap::Bytes(static_cast<std::int64_t>(weights)), true});
    ap::OpProfile op;
    op.name = "aten::linear";
    op.work = {{ap::OpClass::kMatmul,
                ap::DType::kF32,
                {{2 * hidden * hidden, 0}, {8 * hidden, weights}, {0, 1}},
                {{4 * hidden * hidden, 0}, {16 * hidden, 2 * weights}, {0, 2}}}};
    op.saved = {4 * hidden, 0};
    op.parameters = {ap::ParameterId(i)};
    op.ops = {i};
    const auto node = model.graph.add_node(std::move(op));
    if (i > 0) model.graph.add_edge(ap::NodeId(i - 1), node, {i, {4 * hidden, 0}, true});
  }
  model.inputs = {{-1, {4096, 0}, false, {ap::NodeId(0)}}};
  return model;
}

ap::Cluster a100s(int devices) {
  ap::Cluster cluster;
  cluster.name = "a100-40";
  cluster.devices = devices;
  cluster.device = {"A100-40",
                    ap::Bytes(std::int64_t{40} << 30),
                    ap::BytesPerSecond(1.555e12),
                    ap::FlopsPerSecond(9.7e12),
                    ap::FlopsPerSecond(19.5e12),
                    ap::FlopsPerSecond(156e12),
                    ap::FlopsPerSecond(312e12),
                    ap::FlopsPerSecond(312e12),
                    0.6,
                    ap::Seconds(5e-6)};
  cluster.levels = {{"NVLink", std::min(8, devices), {ap::Seconds(5e-6), ap::BytesPerSecond(250e9)}}};
  if (devices > 8) cluster.levels.push_back({"InfiniBand", devices, {ap::Seconds(1e-5), ap::BytesPerSecond(22e9)}});
  return cluster;
}

void run(int operators, int devices, bool repeated) {
  const auto model = chain(operators, repeated);
  const auto cluster = a100s(devices);
  ap::PlanRequest request;
  request.batch = 16 * devices;
  const auto start = std::chrono::steady_clock::now();
  std::string outcome;
  double step = 0;
  try {
    const auto plan = ap::Planner<>{}.plan(model, cluster, request);
    step = plan.step.value();
    outcome = std::to_string(plan.stages.size()) + " stages";
  } catch (const ap::InfeasiblePlan&) {
    outcome = "infeasible";
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  std::cout << R"({"operators":)" << operators << R"(,"devices":)" << devices << R"(,"repeated":)"
            << (repeated ? "true" : "false") << R"(,"seconds":)" << taken.count() << R"(,"step":)" << step
            << R"(,"plan":")" << outcome << "\"}" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const int most_operators = argc > 1 ? std::atoi(argv[1]) : 10'000;
  const int most_devices = argc > 2 ? std::atoi(argv[2]) : 64;
  for (int operators = 100; operators <= most_operators; operators *= 10) {
    for (int devices = 8; devices <= most_devices; devices *= 8) {
      for (const bool repeated : {true, false}) run(operators, devices, repeated);
    }
  }
}
