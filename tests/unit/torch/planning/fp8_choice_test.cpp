#include "torch/planning/fp8_choice.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/torch.h>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/options.hpp>

#include <catch_shim.hpp>
#include <nets.hpp>

#include "capture/trace/capture.hpp"
#include "torch/cost/measured/atom_bench.hpp"
#include "torch/cost/profile.hpp"
#include "torch/passes/cast_hoist.hpp"
#include "torch/passes/linear_fold.hpp"

// Which linear layers run in 8 bits, and that plans count them so.
namespace fp8_choice_test {

using namespace autopar;
using at::Tensor;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    nets::register_all(*this, "first", first, "wide", wide, "uneven", uneven, "back", back, "narrow", narrow, "last",
                       last);
  }
  Tensor forward(const Tensor& x) {
    return last(narrow(back(uneven(wide(first(x).relu()).relu()).relu()).relu()).relu()).sum();
  }
  torch::nn::Linear first{64, 64}, wide{64, 128}, uneven{128, 24}, back{24, 64}, narrow{64, 32}, last{32, 16};
};
TORCH_MODULE(Net);

struct Program {
  OpGraph graph;
  algebra::BatchSemantics plan;
};

Program in_bf16(const Net& net) {
  trace::CaptureOptions options;
  options.autocast = trace::Autocast{at::kBFloat16, c10::DeviceType::CPU};
  Program program;
  program.graph = passes::fold_linear(passes::hoist_parameter_casts(trace::capture(
      *net, {trace::input_spec(torch::ones({8, 64}))},
      [&](const std::vector<Tensor>& in) -> std::vector<Tensor> { return {Net(net)->forward(in[0])}; }, options)));
  program.plan = algebra::analyze_batch(program.graph);
  return program;
}

/// The atom of a layer.
NodeId atom_of(const cost::GraphProfile& profile, const std::string& weight) {
  for (const auto node : profile.model.graph.nodes()) {
    for (const auto parameter : profile.model.graph[node].parameters)
      if (profile.model.parameters[parameter.index()].name == weight) return node;
  }
  FAIL("no atom reads " << weight);
  return NodeId::none();
}

Device fast_products() {
  Device device;
  device.bf16 = FlopsPerSecond(1e15);
  device.memory_bandwidth = BytesPerSecond(1e12);
  return device;
}

TEST_CASE("fp8_layers_of: neither ends, nor uneven sizes, nor layers whose casts take longer", "[fp8]") {
  const Net net;
  const auto program = in_bf16(net);
  const auto choice = planning::fp8_layers_of(program.graph, program.plan);
  CHECK(choice.weights == std::vector<std::string>{"wide.weight", "narrow.weight"});
  std::vector<std::string> left_out;
  for (const auto& [weight, reason] : choice.left_out) left_out.push_back(weight);
  CHECK(left_out == std::vector<std::string>{"first.weight", "uneven.weight", "back.weight", "last.weight"});

  const auto on_device = planning::fp8_layers_of(program.graph, program.plan, fast_products());
  CHECK(on_device.weights.empty());
  CHECK_THAT(on_device.left_out[1].second, Catch::Matchers::Contains("casts take longer"));
  Device slow_products = fast_products();
  slow_products.bf16 = FlopsPerSecond(1e13);
  CHECK(planning::fp8_layers_of(program.graph, program.plan, slow_products).weights == choice.weights);
}

TEST_CASE("chosen_fp8_layers: with precision = fp8 alone, by the device that the plan is for", "[fp8]") {
  const Net net;
  const auto program = in_bf16(net);
  Options options;
  options.precision = Precision::kBf16Compute;
  CHECK(planning::chosen_fp8_layers(options, c10::kCPU, program.graph, program.plan).weights.empty());
  options.precision = Precision::kFp8;
  CHECK(planning::chosen_fp8_layers(options, c10::kCPU, program.graph, program.plan).weights.size() == 2);
}

TEST_CASE("profile_graph: layers in 8 bits are atoms of another structure, with faster products and casts", "[fp8]") {
  const Net net;
  const auto program = in_bf16(net);
  const auto of = [&](const std::vector<std::string>& in_8_bits) {
    return cost::profile_graph(program.graph, program.plan, c10::DeviceType::CPU, {},
                               tensor_parallel::SingleLayers::kByOutputs, in_8_bits);
  };
  const auto plain = of({}), eight = of({"wide.weight"});
  CHECK(eight.in_8_bits == std::vector<std::string>{"wide.weight"});
  CHECK(eight.model.hash == plain.model.hash);
  for (const auto* weight : {"first.weight", "wide.weight", "narrow.weight"}) {
    const auto node = atom_of(plain, weight);
    const auto &before = plain.model.graph[node], &after = eight.model.graph[node];
    CHECK((after.structure == before.structure) == (std::string(weight) != "wide.weight"));
    CHECK((after.work == before.work) == (std::string(weight) != "wide.weight"));
  }
  // A row: 64 numbers of x, 128 of the gradient, and 64 x 128 of the weight, each read and written twice.
  const auto node = atom_of(plain, "wide.weight");
  const auto total = [&](const cost::GraphProfile& profile, auto of_work) {
    double sum = 0;
    for (const auto& item : profile.model.graph[node].work) sum += of_work(item);
    return sum;
  };
  const auto forward_bytes = [](const WorkItem& item) { return item.forward.bytes.at(8); };
  const auto backward_bytes = [](const WorkItem& item) { return item.backward.bytes.at(8); };
  CHECK(total(eight, forward_bytes) - total(plain, forward_bytes) == Approx(4 * (8 * 64 + 64 * 128)));
  CHECK(total(eight, backward_bytes) - total(plain, backward_bytes) == Approx(4 * 8 * 128));
  const auto products = [](const WorkItem& item) {
    return item.op_class == OpClass::kMatmul ? item.forward.flops.at(8) + item.backward.flops.at(8) : 0;
  };
  CHECK(total(eight, products) == Approx(0.58 * total(plain, products)));
}

TEST_CASE("AtomBench: runs layers that have scales in 8 bits", "[fp8]") {
  const Net net;
  const auto program = in_bf16(net);
  const auto profile = cost::profile_graph(program.graph, program.plan);
  cost::detail::StepStopwatch stopwatch(c10::kCPU);
  fp8::Layers layers;
  layers.start({"wide.weight"}, c10::kCPU);
  const std::vector<float> calls(fp8::Layers::kHistory, 8.F);
  layers.set_histories({{"wide.weight", {calls, calls, calls}}});
  const auto seen_by = [&](const std::string& weight) {
    const auto& ops = profile.atoms.atoms[atom_of(profile, weight).index()];
    cost::detail::AtomBench bench(program.graph, program.plan, ops, stopwatch, layers);
    CHECK(bench.run(4, Bytes(0), 0).has_backward);
    return layers.take_seen(0, 1)[0].gt(0).sum().item<std::int64_t>();
  };
  CHECK(seen_by("wide.weight") == 3);  // its input, weight and gradient
  CHECK(seen_by("narrow.weight") == 0);
}

}  // namespace fp8_choice_test
