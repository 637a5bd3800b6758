#include "torch/planning/fp8_choice.hpp"

#include <algorithm>
#include <set>

#include <autopar/io/cluster_file.hpp>

#include "torch/autograd/split_backward.hpp"
#include "torch/device/device_context.hpp"
#include "torch/fused/fp8.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/planning/plan_builder.hpp"

namespace autopar::planning {

namespace {

struct Linear {
  std::string weight;  ///< empty: a class head
  std::vector<SizeExpr> sizes;
};

std::vector<Linear> linears_in(const OpGraph& graph, const algebra::BatchSemantics& plan) {
  std::vector<Linear> linears;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto op = OpId::of(i);
    if (graph.is(op, fused::kLinearCrossEntropy)) linears.push_back({});
    const auto split = autograd::split_backward_of(graph, plan, op);
    if (!split || !split->is_product_of_cast()) continue;
    const auto& weight = graph.value(split->weight);
    linears.push_back({weight.name, weight.sizes});
  }
  return linears;
}

bool is_in_packs(const Linear& linear) {
  constexpr std::int64_t kPack = 16;
  return std::ranges::all_of(linear.sizes,
                             [](SizeExpr size) { return !size.depends_on_batch() && size.fixed % kPack == 0; });
}

/// Rates of the device that a plan is made for; none: products in 8 bits only compute the same numbers there.
std::optional<Device> rates_of(const Options& options, c10::Device device) {
  if (planned_device(options, device) != c10::DeviceType::CUDA) return std::nullopt;
  if (!device.is_cuda()) return read_cluster(options.cluster_file).device;
  return devices::context_of(device.type()).describe(device.index(), 1);  // of any: they are equal
}

/// Of a row of the batch: whether its three products gain more in 8 bits than the casts of its input and gradient take.
/// A cast runs at two thirds of the memory's rate (benchmarks/NOTES.md).
bool gains(const Linear& linear, const Device& device) {
  constexpr double kProducts = 3, kFlops = 2, kOfMemory = 0.65, kGain = 1 - fused::kTimeOfFp8Product;
  const auto out = static_cast<double>(linear.sizes.at(0).fixed), in = static_cast<double>(linear.sizes.at(1).fixed);
  const double rate = device.bf16.value() * device.efficiency, memory = device.memory_bandwidth.value() * kOfMemory;
  return kGain * kProducts * kFlops * in * out / rate > fused::kBytesOfFp8Cast * (in + out) / memory;
}

}  // namespace

Fp8Choice fp8_layers_of(const OpGraph& graph, const algebra::BatchSemantics& plan,
                        const std::optional<Device>& device) {
  const auto linears = linears_in(graph, plan);
  std::set<std::string> at_ends;
  if (!linears.empty()) at_ends = {linears.front().weight, linears.back().weight};
  Fp8Choice choice;
  std::set<std::string> known{""};
  for (const auto& linear : linears) {
    if (!known.insert(linear.weight).second) continue;
    if (at_ends.contains(linear.weight))
      choice.left_out.emplace_back(linear.weight, "it is the first or last linear layer");
    else if (!is_in_packs(linear))
      choice.left_out.emplace_back(linear.weight, "its sizes are no multiples of 16");
    else if (device && !gains(linear, *device))
      choice.left_out.emplace_back(linear.weight, "it is so small that casts take longer than its products gain");
    else
      choice.weights.push_back(linear.weight);
  }
  return choice;
}

Fp8Choice chosen_fp8_layers(const Options& options, c10::Device device, const OpGraph& graph,
                            const algebra::BatchSemantics& plan) {
  if (options.precision != Precision::kFp8) return {};
  return fp8_layers_of(graph, plan, rates_of(options, device));
}

}  // namespace autopar::planning
