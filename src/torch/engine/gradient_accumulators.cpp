#include "torch/engine/gradient_accumulators.hpp"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "torch/device/device_context.hpp"

namespace autopar::engine {

GradientAccumulators::GradientAccumulators(const std::vector<bool>& reduced, c10::Device device)
    : reduced_(reduced), device_(device), stream_(devices::current_stream(device)) {}

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
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(tell));
}

}  // namespace autopar::engine
