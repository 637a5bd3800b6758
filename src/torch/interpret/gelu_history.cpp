#include "torch/interpret/gelu_history.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "torch/interpret/split_backward.hpp"
#include "torch/kernels/gelu_gradient.hpp"

namespace autopar {

namespace {

using torch::autograd::variable_list;

class GeluNode : public torch::autograd::Node {
 public:
  GeluNode(const at::Tensor& x, std::string approximate)
      : Node(torch::autograd::collect_next_edges(x)), x_(x, false), approximate_(std::move(approximate)) {}

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gradients[0].defined()) return {at::Tensor()};
    return {gelu_gradient(gradients[0], x_.unpack(), approximate_)};
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    x_.reset_data();
  }
  std::string name() const override { return "GeluBackward"; }

 private:
  torch::autograd::SavedVariable x_;
  std::string approximate_;
};

}  // namespace

bool reads_linear_alone(const OpGraph& graph, const std::vector<std::vector<OpId>>& uses, OpId op) {
  if (!graph.is(op, "aten::gelu") || !graph.op(op).grad_enabled) return false;
  const auto x = graph.input(op, 0);
  const auto definer = x.valid() ? graph.value(x).definer : OpId::none();
  return definer.valid() && graph.is(definer, "aten::linear") && graph.input(definer, 2).valid() &&
         uses[x.index()].size() == 1 && std::ranges::find(graph.outputs, x) == graph.outputs.end();
}

void proceed_summing_columns(ReplayCall& call) {
  const auto x = call.stack[0].toTensor();
  if (!at::GradMode::is_enabled() || !x.requires_grad() || !takes_summed_columns(x)) {
    call.proceed();
    return;
  }
  const std::shared_ptr<GeluNode> node(new GeluNode(x, call.stack[1].toStringRef()), torch::autograd::deleteNode);
  {
    const at::AutoDispatchBelowADInplaceOrView no_history;
    call.proceed();
  }
  auto result = call.stack[0].toTensor();
  torch::autograd::set_history(result, node);
}

}  // namespace autopar
