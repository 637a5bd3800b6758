#include "torch/autograd/class_loss_function.hpp"

#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "ops/cross_entropy.hpp"
#include "torch/fused/class_loss.hpp"

namespace autopar::autograd {

namespace {

using torch::autograd::variable_list;

using Argument = ops::CrossEntropyArgument;

std::int64_t class_dim(const at::Tensor& logits) { return logits.dim() == 1 ? 0 : 1; }

class ClassLossNode : public torch::autograd::Node {
 public:
  ClassLossNode(const at::Tensor& logits, at::Tensor log_probabilities, at::Tensor target, at::Tensor weight,
                std::int64_t ignore_index)
      : Node(torch::autograd::collect_next_edges(logits)),
        log_probabilities_(std::move(log_probabilities)),
        target_(std::move(target)),
        weight_(std::move(weight)),
        ignore_index_(ignore_index) {}

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    TORCH_CHECK(log_probabilities_.defined(),
                "Trying to backward through the graph a second time: what a cross entropy kept "
                "has become a gradient");
    const at::NoGradGuard no_grad;
    const auto dim = class_dim(log_probabilities_);
    const auto counted = target_.ne(ignore_index_);
    const auto index = target_.mul(counted).to(at::kLong);  // any class for ignored targets
    // Not multiplied by `counted`: the gradient of a mean over no targets is NaN, and ignored targets must still get 0.
    auto factor = at::where(counted, gradients[0], 0);
    if (weight_.defined()) factor = factor.mul(weight_.index_select(0, index.flatten()).view_as(index));
    const auto factors = factor.unsqueeze(dim), places = index.unsqueeze(dim);
    const bool keeps = torch::autograd::get_current_graph_task_keep_graph();
    auto gradient = keeps ? log_probabilities_.exp() : std::exchange(log_probabilities_, {}).exp_();
    gradient.mul_(factors);
    gradient.scatter_(dim, places, gradient.gather(dim, places).sub_(factors));
    return {std::move(gradient)};
  }

  void release_variables() override {
    log_probabilities_.reset();
    target_.reset();
    weight_.reset();
  }
  std::string name() const override { return "ClassLossBackward"; }

 private:
  at::Tensor log_probabilities_, target_, weight_;
  std::int64_t ignore_index_;
};

}  // namespace

void run_with_gradient_in_place(replay::ReplayCall& call) {
  auto logits = call.stack[Argument::kLogits].toTensor();
  const auto reduction = call.stack[Argument::kReduction].toInt();
  if (!at::GradMode::is_enabled() || !logits.requires_grad() || reduction == at::Reduction::Mean) {
    call.call_original();
    return;
  }
  const auto target = call.stack[Argument::kTarget].toTensor();
  const auto given = call.stack[Argument::kWeight];
  const auto weight = given.isNone() ? at::Tensor() : given.toTensor();
  const auto weights = weight.defined() ? std::optional(weight) : std::nullopt;
  const auto ignore_index = call.stack[Argument::kIgnoreIndex].toInt();
  if (fused::widens_logits(call.node.op)) {
    if (fused::has_class_loss_kernels(logits, target, weights)) {
      auto loss =
          fused::cross_entropy_in_kernels(logits, target, weights, reduction, ignore_index, /*overwrites=*/true);
      call.stack.clear();
      call.stack.emplace_back(std::move(loss));
      return;
    }
    logits = logits.to(at::kFloat);
  }
  at::Tensor log_probabilities, loss;
  {
    const at::AutoDispatchBelowADInplaceOrView no_history;
    log_probabilities = at::log_softmax(logits, class_dim(logits));
    loss = at::nll_loss_nd(log_probabilities, target, weights, reduction, ignore_index);
  }
  const std::shared_ptr<ClassLossNode> node(
      new ClassLossNode(logits, std::move(log_probabilities), target, weight, ignore_index),
      torch::autograd::deleteNode);
  torch::autograd::set_history(loss, node);
  call.stack.clear();
  call.stack.emplace_back(std::move(loss));
}

}  // namespace autopar::autograd
