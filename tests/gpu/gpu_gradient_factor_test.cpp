#include "torch/gradients/gradient_factor.hpp"

#include <limits>
#include <vector>

#include <torch/types.h>

#include <catch_shim.hpp>

namespace gpu_gradient_factor_test {

// More than one launch takes, of all types and layouts, among them what the kernel leaves to libtorch.
std::vector<at::Tensor> gradients_of_all_kinds() {
  std::vector<at::Tensor> gradients;
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kComplexFloat}) {
    const auto options = at::TensorOptions(type).device(at::kCUDA);
    for (int i = 0; i < 250; ++i) gradients.push_back(torch::randn({i}, options));
    gradients.push_back(torch::randn({300, 1000}, options).t());
    gradients.push_back(torch::randn({64}, options).slice(0, 0, 64, 2));
    gradients.push_back(torch::full({5}, std::numeric_limits<float>::infinity(), options));
    gradients.push_back(torch::full({5}, std::numeric_limits<float>::quiet_NaN(), options));
  }
  return gradients;
}

TEST_CASE("gradient factor: scales every dtype as libtorch does", "[gpu][gradient_factor]") {
  torch::manual_seed(1);
  for (const double by : {1.0, 0.37, -3.0, 0.0, 1e-6}) {
    for (const auto of : {at::kFloat, at::kDouble}) {
      const auto gradients = gradients_of_all_kinds();
      const auto given = torch::full({}, by, at::TensorOptions(of).device(at::kCUDA));
      std::vector<at::Tensor> wanted;
      for (const auto& gradient : gradients) {
        const bool is_wide = gradient.scalar_type() == at::kDouble || gradient.is_complex();
        const auto wide = gradient.is_complex() ? gradient : gradient.to(is_wide ? at::kDouble : at::kFloat);
        wanted.push_back((wide * given.to(wide.options())).to(gradient.scalar_type()));
      }
      autopar::gradients::multiply_unless_one(gradients, given);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        INFO(gradients[i].scalar_type() << " " << gradients[i].sizes() << ", " << by);
        CHECK(at::allclose(gradients[i], wanted[i], 1e-6, 0, /*equal_nan=*/true));
      }
    }
  }
}

}  // namespace gpu_gradient_factor_test
