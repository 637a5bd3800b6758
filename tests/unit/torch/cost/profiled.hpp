#pragma once

#include <vector>

#include <torch/torch.h>

#include <autopar/cost/roofline.hpp>

#include "capture/trace/capture.hpp"
#include "torch/cost/profile.hpp"
#include "torch/passes/linear_fold.hpp"

namespace autopar::test {

/// A captured module on its way to the planner, as a session prepares it.
struct Profiled {
  OpGraph graph;
  algebra::BatchSemantics plan;
  cost::GraphProfile profile;
  [[nodiscard]] const ModelGraph& model() const { return profile.model.graph; }
};

/// @param forward  of the inputs, by the module
/// @param device   that is to run it
template <class Forward>
Profiled profile(const torch::nn::Module& net, const std::vector<at::Tensor>& inputs, const Forward& forward,
                 c10::DeviceType device = c10::DeviceType::CPU) {
  std::vector<trace::InputSpec> specs;
  for (const auto& input : inputs) specs.push_back(trace::input_spec(input));
  Profiled result;
  result.graph = passes::fold_linear(trace::capture(
      net, specs, [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> { return {forward(in)}; }));
  result.plan = algebra::analyze_batch(result.graph);
  result.profile = cost::profile_graph(result.graph, result.plan, device);
  return result;
}

}  // namespace autopar::test
