#include "torch/gradients/gradient_factor.hpp"

#include <limits>

#include <torch/types.h>

#include <catch_shim.hpp>

namespace autopar::test {

TEST_CASE("multiply_unless_one: multiplies by the loss's gradient", "[gradient_factor]") {
  torch::manual_seed(1);
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kComplexDouble}) {
    for (const double by : {1.0, 0.25, -3.0, 0.0}) {
      INFO(type << ", " << by);
      std::vector<at::Tensor> gradients{torch::randn({7, 3}, type), torch::randn({4, 6}, type).t(),
                                        torch::randn({8}, type).slice(0, 0, 8, 2), torch::empty({0, 2}, type)};
      std::vector<at::Tensor> wanted;
      std::vector<const void*> memory;
      for (const auto& gradient : gradients) {
        wanted.push_back(gradient * by);
        memory.push_back(gradient.const_data_ptr());
      }
      gradients::multiply_unless_one(gradients, torch::full({1}, by, torch::kFloat));
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        CHECK(torch::equal(gradients[i], wanted[i]));
        CHECK(gradients[i].const_data_ptr() == memory[i]);
      }
    }
  }
}

TEST_CASE("multiply_unless_one: a factor of one writes nothing", "[gradient_factor]") {
  auto gradient = torch::full({3}, std::numeric_limits<float>::quiet_NaN());
  const auto version = gradient._version();
  gradients::multiply_unless_one({gradient}, torch::ones({}));
  CHECK(gradient._version() == version);
  CHECK(gradient.isnan().all().item<bool>());
}

}  // namespace autopar::test
