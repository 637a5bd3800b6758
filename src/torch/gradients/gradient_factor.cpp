#include "torch/gradients/gradient_factor.hpp"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include "torch/device/device_context.hpp"

namespace autopar::gradients {

void multiply_unless_one(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) {
  devices::context_of(factor.device().type()).multiply_unless_one(gradients, factor);
}

bool divide_and_check(const std::vector<at::Tensor>& gradients, double divisor, c10::Device device) {
  std::vector<at::Tensor> real;
  for (const auto& gradient : gradients) real.push_back(gradient.is_complex() ? at::view_as_real(gradient) : gradient);
  if (real.empty()) return true;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  auto found = at::zeros({1}, options);
  at::_amp_foreach_non_finite_check_and_unscale_(real, found, at::full({1}, 1 / divisor, options));
  return found.item<float>() == 0;
}

}  // namespace autopar::gradients
