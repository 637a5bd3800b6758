#include "torch/autograd/gelu_function.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/gelu_backward.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "ops/names.hpp"
#include "torch/autograd/layers.hpp"
#include "torch/autograd/split_backward.hpp"
#include "torch/fused/gelu.hpp"
#include "torch/fused/gelu_gradient.hpp"

namespace autopar::autograd {

namespace {

using torch::autograd::variable_list;

class GeluNode : public torch::autograd::Node {
 public:
  GeluNode(const at::Tensor& x, std::string approximate, bool sums_columns)
      : Node(torch::autograd::collect_next_edges(x)),
        x_(x, false),
        approximate_(std::move(approximate)),
        sums_columns_(sums_columns) {}

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gradients[0].defined()) return {at::Tensor()};
    const auto x = x_.unpack();
    return {sums_columns_ ? fused::gelu_gradient(gradients[0], x, approximate_)
                          : at::gelu_backward(gradients[0], x, approximate_)};
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    x_.reset_data();
  }
  std::string name() const override { return sums_columns_ ? "GeluAndColumnsBackward" : "GeluBackward"; }

 private:
  torch::autograd::SavedVariable x_;
  std::string approximate_;
  bool sums_columns_;
};

void run(replay::ReplayCall& call, bool for_linear) {
  const auto x = call.stack[0].toTensor();
  const std::string approximate(call.stack[1].toStringView());
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView no_history;
    result = fused::gelu_of(x, approximate);
  }
  if (at::GradMode::is_enabled() && x.requires_grad()) {
    const bool sums_columns = for_linear && takes_bias_gradient(x);
    const std::shared_ptr<GeluNode> node(new GeluNode(x, approximate, sums_columns), torch::autograd::deleteNode);
    torch::autograd::set_history(result, node);
  }
  call.stack.clear();
  call.stack.emplace_back(std::move(result));
}

}  // namespace

bool is_gelu(const OpGraph& graph, OpId op) { return graph.is(op, ops::kGelu) && graph.overload(op).empty(); }

bool reads_linear_alone(const OpGraph& graph, const std::vector<std::vector<OpId>>& uses, OpId op) {
  if (!is_gelu(graph, op) || !graph.op(op).grad_enabled) return false;
  const auto x = graph.input(op, 0);
  const auto definer = x.valid() ? graph.value(x).definer : OpId::none();
  return definer.valid() && has_layer_bias(graph, definer) && uses[x.index()].size() == 1 &&
         std::ranges::find(graph.outputs, x) == graph.outputs.end();
}

void run_gelu(replay::ReplayCall& call) { run(call, false); }

void run_gelu_with_bias_gradient(replay::ReplayCall& call) { run(call, true); }

}  // namespace autopar::autograd
