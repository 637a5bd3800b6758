#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/layer_norm_source.hpp"
#include "torch/autograd/parameter_cast.hpp"
#include "torch/device/device_context.hpp"
#include "torch/fused/bias_gradient.hpp"
#include "torch/fused/fused_ops.hpp"

#include "gpu/kernel_error.hpp"

// The kernels of a sum and its layer norm against libtorch's operators in double precision.
namespace gpu_layer_norm_test {

namespace ap = autopar;
using gpu_test::Outcome, gpu_test::at_type;
using std::optional;
using torch::Tensor;

struct Case {
  std::vector<std::int64_t> sizes;
  bool reads_sum = true, reads_norm = true;
};

std::tuple<Tensor, Tensor> joined(const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& bias,
                                  double p = 0, const optional<Tensor>& seed = {}) {
  using Operator = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, at::IntArrayRef, const optional<Tensor>&,
                                              const optional<Tensor>&, double, bool, double, const optional<Tensor>&);
  static const auto op = gpu_test::operator_named<Operator>(ap::fused::kAddLayerNorm);
  return op.call(x, y, {x.size(-1)}, weight, bias, 1e-5, true, p, seed);
}

std::tuple<Tensor, Tensor> apart(const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& bias) {
  const auto sum = x + y;
  return {sum, torch::layer_norm(sum, {x.size(-1)}, weight.to(sum.scalar_type()), bias.to(sum.scalar_type()))};
}

template <class Operators>
Outcome outcome(const Case& one, c10::ScalarType type, c10::ScalarType numbers, Operators operators) {
  torch::manual_seed(8);
  const auto drawn = [&](std::vector<std::int64_t> sizes, c10::ScalarType to) {
    return at_type(torch::randn(sizes), to);
  };
  const auto x = drawn(one.sizes, type).requires_grad_(), y = drawn(one.sizes, type).requires_grad_();
  const auto weight = drawn({one.sizes.back()}, numbers).requires_grad_(),
             bias = drawn({one.sizes.back()}, numbers).requires_grad_();
  const auto of_sum = drawn(one.sizes, type), of_norm = drawn(one.sizes, type);
  const auto [sum, norm] = operators(x, y, weight, bias);
  Tensor total = torch::zeros({}, sum.options().dtype(at::kDouble));
  if (one.reads_sum) total = total + (sum.to(at::kDouble) * of_sum).sum();
  if (one.reads_norm) total = total + (norm.to(at::kDouble) * of_norm).sum();
  const auto gradients = torch::autograd::grad({total}, {x, y, weight, bias}, {}, false, false, /*allow_unused=*/true);
  Outcome made{{"sum", sum}, {"norm", norm}};
  const std::vector<std::string> names{"gradient of x", "of y", "of the weight", "of the bias"};
  for (std::size_t i = 0; i < names.size(); ++i)
    if (gradients[i].defined()) made.emplace_back(names[i], gradients[i]);
  return gpu_test::in_double(made);
}

TEST_CASE("fused add + layer norm: equals libtorch", "[gpu]") {
  REQUIRE(ap::devices::context_of(at::kCUDA).has_kernels(ap::kernels::kLayerNormKernels, 0));
  const std::vector<Case> cases{
      {{8, 128, 2048}},       {{3, 7, 768}},          {{5, 4096}},     {{5, 8192}},    {{1, 8}}, {{33, 5, 40}},
      {{9, 64}, true, false}, {{9, 64}, false, true}, {{2, 3, 16384}}, {{4, 6, 1000}}, {{4, 7}}, {{600, 32}}};
  for (const auto& one : cases) {
    INFO(c10::IntArrayRef(one.sizes) << (one.reads_sum ? "" : ", sum unread")
                                     << (one.reads_norm ? "" : ", norm unread"));
    const auto whole = [](const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& bias) {
      return joined(x, y, weight, bias);
    };
    const auto exact = outcome(one, at::kDouble, at::kDouble, apart);
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const auto numbers : {at::kFloat, type}) {
        INFO(c10::toString(type) << " with " << c10::toString(numbers));
        if (numbers != type && one.sizes.back() * c10::elementSize(type) % 16 != 0)
          continue;  // libtorch has no such norm
        if (numbers != type && one.sizes.back() > 8192) continue;
        gpu_test::check_error(outcome(one, type, numbers, whole), outcome(one, type, numbers, apart), exact);
      }
    }
  }
}

/// 1 / (1 - p) where the kernel keeps an element, else 0.
Tensor mask_of(const std::vector<std::int64_t>& sizes, c10::ScalarType type, double p, const Tensor& seed) {
  const auto one = at_type(torch::ones(sizes), type), zero = torch::zeros_like(one);
  const auto numbers = torch::ones({sizes.back()}, one.options());
  return std::get<0>(joined(one, zero, numbers, numbers, p, seed)).ne(0).to(at::kDouble) / (1 - p);
}

TEST_CASE("fused dropout + add + norm: equals libtorch, mask from seed", "[gpu]") {
  constexpr double kP = 0.75;  // 16 bits have the scale
  const std::vector<Case> cases{{{8, 128, 2048}}, {{3, 7, 768}},          {{5, 4096}},
                                {{5, 8192}},      {{9, 64}, true, false}, {{600, 32}, false, true}};
  for (const auto& one : cases) {
    INFO(c10::IntArrayRef(one.sizes) << (one.reads_sum ? "" : ", sum unread")
                                     << (one.reads_norm ? "" : ", norm unread"));
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      if (one.sizes.back() == 8192 && type == at::kFloat) continue;  // longer than the kernel's rows
      INFO(c10::toString(type));
      for (const std::int64_t number : {std::int64_t{3}, std::int64_t{-0x123456789ABCDEF}}) {
        const auto seed = torch::tensor(number, at::kLong), on_gpu = seed.cuda();
        const auto mask = mask_of(one.sizes, type, kP, seed);
        CHECK(torch::equal(mask, mask_of(one.sizes, type, kP, on_gpu)));
        CHECK_FALSE(torch::equal(mask, mask_of(one.sizes, type, kP, seed + 1)));
        const auto deviation = std::sqrt(kP * (1 - kP) / static_cast<double>(mask.numel()));
        CHECK(std::fabs(mask.ne(0).to(at::kDouble).mean().item<double>() - (1 - kP)) < 5 * deviation);
        const auto masked = [&](const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& bias) {
          return apart(x * mask.to(x.scalar_type()), y, weight, bias);
        };
        const auto dropped = [&](const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& bias) {
          return joined(x, y, weight, bias, kP, number == 3 ? seed : on_gpu);
        };
        gpu_test::check_error(outcome(one, type, type, dropped), outcome(one, type, type, masked),
                              outcome(one, at::kDouble, at::kDouble, masked));
      }
    }
  }
}

TEST_CASE("fused dropout + add + norm: bias gradient of one input only", "[gpu]") {
  torch::manual_seed(10);
  const auto seed = torch::tensor(17, at::kLong);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto drawn = [&] { return at_type(torch::randn({517, 1000}), type).requires_grad_(); };
    const auto x = drawn(), y = drawn(), of_sum = drawn(), of_norm = drawn();
    const auto weight = at_type(torch::randn({1000}), type), bias = torch::zeros_like(weight);
    const auto [sum, norm] = joined(x, y, weight, bias, 0.25, seed);
    const auto made = torch::autograd::grad({sum, norm}, {x, y}, {of_sum, of_norm});
    const auto sums = ap::fused::take_bias_gradient(made[0]);
    REQUIRE(sums.defined());
    gpu_test::check_summed_columns(sums, made[0]);
    CHECK_FALSE(ap::fused::take_bias_gradient(made[1]).defined());
  }
}

TEST_CASE("fused layer norm: cast weights get fp32 gradients", "[gpu]") {
  torch::manual_seed(11);
  const auto x = at_type(torch::randn({700, 256}), at::kBFloat16), y = at_type(torch::randn({700, 256}), at::kBFloat16);
  const auto of_norm = at_type(torch::randn({700, 256}), at::kBFloat16);
  const auto seed = torch::tensor(5, at::kLong);
  for (const double p : {0.0, 0.5}) {
    const auto weight = at_type(torch::randn({256}), at::kFloat).requires_grad_(),
               bias = torch::zeros_like(weight).requires_grad_();
    const auto cast = [](const Tensor& parameter) {
      return ap::autograd::with_history_of(parameter, parameter.detach().to(at::kBFloat16));
    };
    const auto [sum, norm] = joined(x, y, cast(weight), cast(bias), p, seed);
    const auto made = torch::autograd::grad({norm}, {weight, bias}, {of_norm});
    const auto dy = of_norm.to(at::kDouble);
    const auto h = torch::layer_norm(sum.detach().to(at::kDouble), {256});
    CHECK(made[0].scalar_type() == at::kFloat);
    CHECK(gpu_test::worst_error(made[0], (dy * h).sum(0)) < 1e-5);
    CHECK(gpu_test::worst_error(made[1], dy.sum(0)) < 1e-6);
    // In their own types others have it as ever.
    const auto own = weight.detach().to(at::kBFloat16).requires_grad_(), other = torch::zeros_like(own);
    const auto norm_of_own = std::get<1>(joined(x, y, own, other, p, seed));
    CHECK(torch::autograd::grad({norm_of_own}, {own}, {of_norm})[0].scalar_type() == at::kBFloat16);
  }
}

TEST_CASE("fused add + layer norm: gradient carries bias gradient once", "[gpu]") {
  torch::manual_seed(9);
  for (const std::vector<std::int64_t>& sizes :
       std::vector<std::vector<std::int64_t>>{{4, 128, 2048}, {4096, 256}, {3, 8}, {517, 1000}, {9, 8192}}) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      INFO(c10::IntArrayRef(sizes) << ", " << c10::toString(type));
      if (sizes.back() == 8192 && type == at::kFloat) continue;  // longer than the kernel's rows
      const auto drawn = [&] { return at_type(torch::randn(sizes), type).requires_grad_(); };
      const auto x = drawn(), y = drawn(), of_sum = drawn(), of_norm = drawn();
      const auto weight = at_type(torch::randn({sizes.back()}), at::kFloat), bias = torch::zeros_like(weight);
      const auto gradients = [&] {
        const auto [sum, norm] = joined(x, y, weight, bias);
        return torch::autograd::grad({sum, norm}, {x, y}, {of_sum, of_norm});
      };
      const auto made = gradients(), again = gradients();
      const auto sums = ap::fused::take_bias_gradient(made[0]);
      REQUIRE(sums.defined());
      gpu_test::check_summed_columns(sums, made[0]);
      CHECK(torch::equal(sums, ap::fused::take_bias_gradient(again[0])));
      CHECK_FALSE(ap::fused::take_bias_gradient(made[1]).defined());  // the same tensor
    }
  }
}

}  // namespace gpu_layer_norm_test
