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
  // Accumulators with hooks are kept, since their hooks would be added again.
  std::erase_if(held_, [&](const auto& each) { return !reduced_[each.first.index()]; });
  stream_ = stream;
}

void GradientAccumulators::hold(ValueId parameter, const at::Tensor& copy) {
  if (held_.contains(parameter)) return;
  auto& accumulator = held_[parameter];
  accumulator = torch::autograd::impl::grad_accumulator(copy);
  if (!reduced_[parameter.index()]) return;
  const auto tell = [added = added_, parameter](const torch::autograd::variable_list& outputs,
                                                const torch::autograd::variable_list&) {
    if (*added) (*added)(parameter);
    return outputs;
  };
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(tell));
}

}  // namespace autopar::engine
