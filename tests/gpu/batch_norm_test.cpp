#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <catch_shim.hpp>

#include "torch/device/device_context.hpp"
#include "torch/ir/batch_norm_relu.hpp"
#include "torch/kernels/batch_norm_source.hpp"

// The kernels of a batch norm, an addition and ReLU against libtorch's operators in double precision.
namespace gpu_batch_norm_test {

namespace ap = autopar;
using std::optional;
using torch::Tensor;

struct Case {
  std::vector<std::int64_t> sizes;
  bool residual = false, relu = false, affine = true;
};

/// Result, running statistics, and gradients of what is differentiable.
using Outcome = std::vector<std::pair<std::string, Tensor>>;

Tensor joined(const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>& bias, const Tensor& mean,
              const Tensor& variance, const optional<Tensor>& residual, bool relu) {
  using Operator = Tensor(const Tensor&, const optional<Tensor>&, const optional<Tensor>&, const optional<Tensor>&,
                          const optional<Tensor>&, bool, double, double, bool, const optional<Tensor>&, bool);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(std::string(ap::kBatchNormRelu).c_str(), "").typed<Operator>();
  return op.call(x, weight, bias, mean, variance, true, 0.3, 1e-5, true, residual, relu);
}

Tensor apart(const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>& bias, const Tensor& mean,
             const Tensor& variance, const optional<Tensor>& residual, bool relu) {
  auto y = torch::batch_norm(x, weight, bias, mean, variance, true, 0.3, 1e-5, true);
  if (residual) y = y + *residual;
  return relu ? torch::relu(y) : y;
}

template <class Operators>
Outcome outcome(const Case& one, c10::ScalarType type, Operators operators) {
  const bool wide = type == at::kDouble;
  const auto at_type = [&](const Tensor& of, c10::ScalarType to) {
    return of.to(at::kBFloat16).to(to).to(at::kCUDA);  // the same numbers in all types
  };
  torch::manual_seed(5);
  const auto channels = one.sizes[1];
  const auto drawn = [&](double offset) {
    const auto values = torch::randn(one.sizes) + offset * torch::linspace(-1, 1, channels).view({1, channels, 1, 1});
    return at_type(values, type).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  };
  const auto x = drawn(8), residual = drawn(1), given = drawn(0).detach();
  const auto numbers = wide ? at::kDouble : at::kFloat;
  const auto weight = at_type(torch::randn({channels}), numbers).requires_grad_(),
             bias = at_type(torch::randn({channels}), numbers).requires_grad_();
  const auto mean = at_type(torch::randn({channels}), numbers), variance = at_type(torch::rand({channels}), numbers);
  const auto or_none = [](bool is, const Tensor& tensor) { return is ? optional<Tensor>(tensor) : std::nullopt; };
  const auto y = operators(x, or_none(one.affine, weight), or_none(one.affine, bias), mean, variance,
                           or_none(one.residual, residual), one.relu);
  std::vector<std::pair<std::string, Tensor>> leaves{{"x", x}};
  if (one.affine) leaves.insert(leaves.end(), {{"weight", weight}, {"bias", bias}});
  if (one.residual) leaves.emplace_back("residual", residual);
  std::vector<Tensor> of;
  for (const auto& [name, leaf] : leaves) of.push_back(leaf);
  auto gradients = torch::autograd::grad({y}, of, {given}, true);
  Outcome made{{"result", y.detach()}, {"running mean", mean}, {"running variance", variance}};
  for (std::size_t i = 0; i < of.size(); ++i)
    made.emplace_back("gradient of " + leaves[i].first, gradients[i].detach());
  for (auto& [name, value] : made) value = value.to(at::kDouble);
  return made;
}

double distance(const Tensor& a, const Tensor& b) { return ((a - b).norm() / (b.norm() + 1e-30)).item<double>(); }

const std::vector<Case> kCases{
    {{8, 64, 17, 9}},
    {{8, 64, 17, 9}, false, true},
    {{8, 64, 17, 9}, true, false},
    {{8, 64, 17, 9}, true, true},
    {{3, 8, 5, 7}, true, true},
    {{2, 24, 33, 3}, false, true, false},
    {{4, 2048, 7, 7}, true, true},
    {{2, 520, 2, 1}, true, true},
    {{64, 128, 28, 28}, true, true},
};

TEST_CASE("A batch norm, an addition and ReLU in kernels of their own are libtorch's", "[gpu]") {
  REQUIRE(ap::context_of(at::kCUDA).has_kernels(ap::kBatchNormKernels, 0));
  for (const auto& one : kCases) {
    INFO(c10::IntArrayRef(one.sizes) << (one.residual ? ", residual" : "") << (one.relu ? ", ReLU" : ""));
    const auto exact = outcome(one, at::kDouble, apart);
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      INFO(c10::toString(type));
      const auto made = outcome(one, type, joined), libtorch = outcome(one, type, apart);
      REQUIRE(made.size() == exact.size());
      for (std::size_t i = 0; i < exact.size(); ++i) {
        INFO(exact[i].first);
        // Where a sum is next to zero its sign, and with it what passes, is rounding's.
        const auto error = distance(made[i].second, exact[i].second),
                   of_libtorch = distance(libtorch[i].second, exact[i].second);
        INFO(error << ", libtorch " << of_libtorch);
        CHECK(error <= 1.5 * of_libtorch + 1e-6);
      }
    }
  }
}

TEST_CASE("The kernels of a batch norm make the same again, to the bit, and take what they must not read", "[gpu]") {
  const Case one{{16, 64, 28, 28}, true, true};
  const auto first = outcome(one, at::kBFloat16, joined), second = outcome(one, at::kBFloat16, joined);
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(torch::equal(first[i].second, second[i].second));
  // Rows, channels first, a number of channels that packs do not divide: libtorch's operators.
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{32, 16}, {4, 6, 5, 5}, {1, 64, 1, 2}}) {
    const auto x = torch::randn(sizes, at::kCUDA);
    const auto zeros = torch::zeros({sizes[1]}, at::kCUDA), ones = torch::ones({sizes[1]}, at::kCUDA);
    const auto made = joined(x, {}, {}, zeros.clone(), ones.clone(), x, true);
    const auto expected = apart(x, {}, {}, zeros.clone(), ones.clone(), x, true);
    CHECK(torch::allclose(made, expected, 1e-5, 1e-5));
  }
  const auto nan = torch::full({4, 8, 2, 2}, std::numeric_limits<float>::quiet_NaN(), at::kCUDA)
                       .contiguous(at::MemoryFormat::ChannelsLast);
  const auto zeros = torch::zeros({8}, at::kCUDA);
  CHECK(joined(nan, {}, {}, zeros, zeros.clone(), {}, true).isnan().all().item<bool>());
}

}  // namespace gpu_batch_norm_test
