#include "torch/engine/torch_engine.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>

#include <autopar/runtime/executor.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/schedule.hpp>

#include <catch_shim.hpp>
#include <nets.hpp>

#include "torch/cost/partition.hpp"
#include "torch/staging/staged_graph.hpp"
#include "unit/torch/passes/models_of_passes.hpp"

namespace {
namespace torch_engine_test {

using namespace autopar;

/// A mean loss without anything to know before the pipeline.
struct Regression : test::TestModel {
  torch::nn::Linear a{6, 16}, b{16, 16}, c{16, 2};
  Regression() {
    nets::register_all(*this, "a", a, "b", b, "c", c);
    to(torch::kDouble);
  }
  test::Tensors run(const test::Tensors& in) override {
    const auto hidden = torch::tanh(b(torch::tanh(a(in[0]))));
    return {torch::mse_loss(c(hidden + torch::tanh(hidden)), in[1])};
  }
  test::Tensors arguments(std::int64_t n) override {
    return {torch::randn({n, 6}, torch::kDouble), torch::randn({n, 2}, torch::kDouble)};
  }
};

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

Outcome of_one_process(Regression& model, const test::Tensors& in) {
  model.zero_grad();
  const auto loss = model.run(in)[0];
  loss.backward();
  Outcome outcome{loss.item<double>(), {}};
  for (const auto& item : model.named_parameters()) outcome.gradients[item.key()] = item.value().grad().clone();
  model.zero_grad();
  return outcome;
}

/// A step of stages with so many replicas each, on as many ranks, one sample list cut evenly among them.
Outcome of_stages(Regression& model, const test::Tensors& in, const std::vector<int>& replicas, int microbatches) {
  const auto graph = test::captured_for_passes(model, in, false);
  const auto semantics = algebra::analyze_batch(graph);
  REQUIRE(semantics.prologue.empty());
  const auto atoms = cost::partition_into_atoms(graph, semantics);
  staging::StageMap map;
  int ranks = 0;
  for (const int count : replicas) {
    std::vector<Rank> mesh;
    for (int r = 0; r < count; ++r) mesh.emplace_back(ranks++);
    map.meshes.emplace_back(mesh);
  }
  for (const NodeId atom : atoms.atom_of)
    map.stage_of.push_back(atom.valid() ? StageId::of(atom.index() * replicas.size() / atoms.atoms.size())
                                        : StageId::none());
  const auto divided = staging::divide(graph, semantics, map, ranks);
  const auto loss = semantics.outputs[static_cast<std::size_t>(semantics.loss)].value;
  const auto samples = in[0].size(0) / ranks;
  const BatchLayout layout{std::vector<std::int64_t>(static_cast<std::size_t>(ranks), samples), microbatches};
  const auto program = make_program(divided.pipeline, layout, OneFOneB{}, Phase::kStep);
  const auto parameters = model.named_parameters();

  Outcome outcome;
  std::mutex mutex;
  loopback::run(ranks, [&](World& world) {
    engine::RankRuntime runtime(graph, semantics, divided, world.rank_id(), c10::Device(c10::kCPU),
                                [&](ValueId leaf) { return parameters[graph.value(leaf).name]; });
    runtime.refresh_leaves();
    engine::CallContext context{
        BatchSplit(runtime.pipeline(), layout), world.rank_id(), in[0].size(0), {}, true, {}, {}, {}};
    for (const auto& tensor : in) context.inputs.push_back(tensor.narrow(0, world.rank() * samples, samples));
    engine::TorchEngine engine(runtime, std::move(context));
    engine.add_sum_gradient(loss, at::ones({}, at::kDouble));
    engine.start_gradients();
    auto transport = world.make_transport();
    std::vector<GroupId> groups;
    for (const auto& group : divided.pipeline.groups) groups.push_back(transport.make_group(group.ranks));
    Executor(engine, transport, {groups}).run(program.ranks[world.rank_id().index()]);
    const auto addend = engine.sum(loss).item<double>();
    const auto gradients = engine.take_gradients();
    const std::lock_guard lock(mutex);
    outcome.loss += addend;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      outcome.gradients[graph.value(runtime.parameters()[i]).name] = gradients[i].clone();
  });
  return outcome;
}

TEST_CASE("TorchEngine: a step of any stages equals one process") {
  torch::manual_seed(5);
  Regression model;
  const auto in = model.arguments(12);
  const auto wanted = of_one_process(model, in);
  for (const auto& replicas : std::vector<std::vector<int>>{{1}, {2}, {1, 1}, {2, 1}, {1, 2}, {1, 1, 1}}) {
    for (const int microbatches : {1, 2, 3}) {
      const auto made = of_stages(model, in, replicas, microbatches);
      INFO(replicas.size() << " stages, the first of " << replicas[0] << " replicas, " << microbatches
                           << " micro-batches");
      CHECK(std::abs(made.loss - wanted.loss) < 1e-12);
      REQUIRE(made.gradients.size() == wanted.gradients.size());
      for (const auto& [name, gradient] : wanted.gradients) {
        INFO(name);
        CHECK((made.gradients.at(name) - gradient).abs().max().item<double>() < 1e-12);
      }
    }
  }
  for (const auto& parameter : model.parameters()) CHECK_FALSE(parameter.grad().defined());
}

}  // namespace torch_engine_test
}  // namespace
