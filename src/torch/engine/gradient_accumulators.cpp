#include "torch/engine/gradient_accumulators.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "torch/device/device_context.hpp"

namespace autopar::engine {

namespace {

/// Writes the first gradient to a sum that holds no numbers, before its accumulator would add it.
class WriteFirst : public torch::autograd::FunctionPreHook {
 public:
  WriteFirst(at::Tensor variable, std::shared_ptr<autograd::UnwrittenSums> unwritten)
      : variable_(std::move(variable)), unwritten_(std::move(unwritten)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    const auto& gradient = gradients[0];
    const auto sum = variable_.grad();
    if (!gradient.defined() || !sum.defined() || !unwritten_->take(sum)) return gradients;
    const at::NoGradGuard no_grad;
    sum.copy_(gradient);
    return {at::Tensor()};
  }

 private:
  at::Tensor variable_;
  std::shared_ptr<autograd::UnwrittenSums> unwritten_;
};

}  // namespace

GradientAccumulators::GradientAccumulators(const std::vector<bool>& reduced, c10::Device device,
                                           std::shared_ptr<autograd::UnwrittenSums> unwritten)
    : reduced_(reduced), device_(device), stream_(devices::current_stream(device)), unwritten_(std::move(unwritten)) {}

void GradientAccumulators::follow_stream() {
  const auto stream = devices::current_stream(device_);
  if (stream == stream_) return;
  held_.clear();
  stream_ = stream;
}

void GradientAccumulators::hold(ValueId parameter, const at::Tensor& copy) {
  if (held_.contains(parameter)) return;
  auto& accumulator = held_[parameter];
  accumulator = torch::autograd::impl::grad_accumulator(copy);
  if (!reduced_[parameter.index()]) return;
  auto& told_of = told_of_[parameter];
  if (told_of.lock() == accumulator) return;  // an earlier call's graph has kept it, with its hook
  told_of = accumulator;
  const auto tell = [added = added_, parameter](const torch::autograd::variable_list& outputs,
                                                const torch::autograd::variable_list&) {
    if (*added) (*added)(parameter);
    return outputs;
  };
  if (unwritten_) accumulator->add_pre_hook(std::make_unique<WriteFirst>(copy, unwritten_));
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(tell));
}

}  // namespace autopar::engine
