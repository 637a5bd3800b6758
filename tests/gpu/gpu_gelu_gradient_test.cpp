#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "torch/fused/bias_gradient.hpp"
#include "torch/fused/gelu_gradient.hpp"

#include "gpu/kernel_error.hpp"

// The gradient of GELU and its sums over rows in a kernel of the library's own, against libtorch's in double precision.
namespace gpu_gelu_gradient_test {

using torch::Tensor;

/// @return whether sums came with it
bool check(const Tensor& gradient, const Tensor& x, const std::string& approximate) {
  INFO(x.sizes() << " of strides " << x.strides() << ", " << c10::toString(x.scalar_type()) << ", " << approximate);
  const at::NoGradGuard no_grad;
  const auto exact = at::gelu_backward(gradient.to(at::kDouble), x.to(at::kDouble), approximate);
  const auto theirs = at::gelu_backward(gradient, x, approximate);
  const auto ours = autopar::fused::gelu_gradient(gradient, x, approximate);
  REQUIRE(ours.scalar_type() == x.scalar_type());
  REQUIRE(ours.sizes() == x.sizes());
  CHECK(gpu_test::worst_error(ours, exact) <= 1.5 * gpu_test::worst_error(theirs, exact) + 1e-7);
  const auto again = autopar::fused::gelu_gradient(gradient, x, approximate);
  CHECK(torch::equal(ours, again));
  const auto sums = autopar::fused::take_bias_gradient(ours);
  if (!sums.defined()) return false;
  CHECK(torch::equal(sums, autopar::fused::take_bias_gradient(again)));
  gpu_test::check_summed_columns(sums, ours);
  return true;
}

TEST_CASE("GELU backward: error <= 1.5x libtorch's, bitwise repeatable", "[gpu]") {
  torch::manual_seed(12);
  const std::vector<std::vector<std::int64_t>> sizes{{8192, 2048}, {4, 128, 3072}, {1, 8},    {33, 264},
                                                     {1000, 1000}, {517, 8},       {3, 50304}};
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto drawn = [&](at::IntArrayRef of, double spread) {
      return (torch::randn(of, at::kCUDA) * spread).to(type);
    };
    for (const std::string approximate : {"none", "tanh"}) {
      for (const auto& size : sizes) CHECK(check(drawn(size, 1), drawn(size, 2), approximate));
      CHECK(check(drawn({64, 264}, 1), drawn({64, 264}, 40), approximate));         // where the derivative is 0 or 1
      CHECK_FALSE(check(drawn({33, 129}, 1), drawn({33, 129}, 2), approximate));    // no whole packs
      CHECK_FALSE(check(drawn({64, 32}, 1).t(), drawn({32, 64}, 2), approximate));  // gaps
      CHECK_FALSE(check(drawn({64}, 1), drawn({64}, 2), approximate));              // no rows
    }
  }
}

}  // namespace gpu_gelu_gradient_test
