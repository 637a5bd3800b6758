#include <autopar/torch/global_mean.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <autopar/core/error.hpp>

#include "torch/session/result_node.hpp"

namespace autopar {

at::Tensor global_mean(World& world, const at::Tensor& local_sum, std::int64_t local_count) {
  expect(local_sum.defined() && local_sum.numel() == 1, "global_mean: pass the sum over this rank's samples, one number");
  expect(local_count >= 0, "global_mean: the local count is negative");
  double values[2] = {local_sum.detach().item<double>(), static_cast<double>(local_count)};
  world.all_reduce_sum(std::span<double>(values), "global_mean");
  const auto count = values[1];
  expect(count > 0, "global_mean: no rank has a sample");
  std::vector<at::Tensor> mean;
  {
    const at::NoGradGuard no_grad;
    mean.push_back(at::full_like(local_sum.detach(), values[0] / count));
  }
  if (at::GradMode::is_enabled() && local_sum.requires_grad()) {
    attach_history(mean, {local_sum}, [count](const torch::autograd::variable_list& given, bool) {
      torch::autograd::variable_list out(1);
      if (given[0].defined()) out[0] = given[0].div(count);
      return out;
    });
  }
  return mean[0];
}

}  // namespace autopar
