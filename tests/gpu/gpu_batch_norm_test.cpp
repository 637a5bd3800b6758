#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/batch_norm_source.hpp"
#include "torch/device/device_context.hpp"
#include "torch/fused/bias_gradient.hpp"
#include "torch/fused/fused_ops.hpp"

#include "gpu/kernel_error.hpp"

// The kernels of a batch norm, an addition and ReLU against libtorch's operators in double precision.
namespace gpu_batch_norm_test {

namespace ap = autopar;
using gpu_test::Outcome, gpu_test::at_type;
using std::optional;
using torch::Tensor;

struct Case {
  std::vector<std::int64_t> sizes;
  bool residual = false, relu = false, affine = true;
};

/// Which of the two results are read, and whether by operators that hand their gradients over.
struct Readers {
  bool first = true, second = false, hand_over = false;
};

/// A tensor for each of two readers.
using Twice = std::tuple<Tensor, Tensor>;

Twice joined(const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>& bias, const Tensor& mean,
             const Tensor& variance, const optional<Tensor>& residual, bool relu) {
  using Operator = Twice(const Tensor&, const optional<Tensor>&, const optional<Tensor>&, const optional<Tensor>&,
                         const optional<Tensor>&, bool, double, double, bool, const optional<Tensor>&, bool);
  static const auto op = gpu_test::operator_named<Operator>(ap::fused::kBatchNormRelu);
  return op.call(x, weight, bias, mean, variance, true, 0.3, 1e-5, true, residual, relu);
}

Twice apart(const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>& bias, const Tensor& mean,
            const Tensor& variance, const optional<Tensor>& residual, bool relu) {
  auto y = torch::batch_norm(x, weight, bias, mean, variance, true, 0.3, 1e-5, true);
  if (residual) y = y + *residual;
  if (relu) y = torch::relu(y);
  return {y, y};
}

/// Result, running statistics, and gradients of what is differentiable.
template <class Operators>
Outcome outcome(const Case& one, c10::ScalarType type, Operators operators, const Readers& readers = {}) {
  torch::manual_seed(5);
  const auto channels = one.sizes[1];
  const auto drawn = [&](double offset) {
    const auto values = torch::randn(one.sizes) + offset * torch::linspace(-1, 1, channels).view({1, channels, 1, 1});
    return at_type(values, type).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  };
  const auto x = drawn(8), residual = drawn(1);
  const std::vector<Tensor> given{drawn(0).detach(), drawn(0.5).detach()};
  const auto numbers = type == at::kDouble ? at::kDouble : at::kFloat;
  const auto weight = at_type(torch::randn({channels}), numbers).requires_grad_(),
             bias = at_type(torch::randn({channels}), numbers).requires_grad_();
  const auto mean = at_type(torch::randn({channels}), numbers), variance = at_type(torch::rand({channels}), numbers);
  const auto or_none = [](bool is, const Tensor& tensor) { return is ? optional<Tensor>(tensor) : std::nullopt; };
  const auto [first, second] = operators(x, or_none(one.affine, weight), or_none(one.affine, bias), mean, variance,
                                         or_none(one.residual, residual), one.relu);
  std::vector<std::pair<std::string, Tensor>> leaves{{"x", x}};
  if (one.affine) leaves.insert(leaves.end(), {{"weight", weight}, {"bias", bias}});
  if (one.residual) leaves.emplace_back("residual", residual);
  std::vector<Tensor> of, read, of_read;
  for (const auto& [name, leaf] : leaves) of.push_back(leaf);
  if (readers.first) read.push_back(first), of_read.push_back(given[0]);
  if (readers.second) read.push_back(second), of_read.push_back(given[1]);
  if (readers.hand_over) {
    for (std::size_t i = 0; i < read.size(); ++i) read[i] = (read[i] * of_read[i]).sum();
    of_read.clear();
  }
  const auto gradients = torch::autograd::grad(read, of, of_read);
  Outcome made{{"result", first}, {"running mean", mean}, {"running variance", variance}};
  for (std::size_t i = 0; i < of.size(); ++i) made.emplace_back("gradient of " + leaves[i].first, gradients[i]);
  return gpu_test::in_double(made);
}

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

TEST_CASE("fused batch norm + add + ReLU: equals libtorch", "[gpu]") {
  REQUIRE(ap::devices::context_of(at::kCUDA).has_kernels(ap::kernels::kBatchNormKernels, 0));
  for (const auto& one : kCases) {
    INFO(c10::IntArrayRef(one.sizes) << (one.residual ? ", residual" : "") << (one.relu ? ", ReLU" : ""));
    const auto exact = outcome(one, at::kDouble, apart);
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      INFO(c10::toString(type));
      // Where a sum is next to zero its sign, and with it what passes, is rounding's.
      gpu_test::check_error(outcome(one, type, joined), outcome(one, type, apart), exact);
    }
  }
}

TEST_CASE("fused batch norm: backward adds the gradients of two readers", "[gpu]") {
  for (const auto& one : kCases) {
    for (const Readers readers :
         {Readers{true, true}, Readers{false, true}, Readers{true, true, true}, Readers{true, false, true}}) {
      INFO(c10::IntArrayRef(one.sizes) << (one.residual ? ", residual" : "") << (one.relu ? ", ReLU" : "")
                                       << (readers.first ? ", first" : "") << (readers.second ? ", second" : "")
                                       << (readers.hand_over ? ", handed over" : ""));
      const auto exact = outcome(one, at::kDouble, apart, readers);
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        INFO(c10::toString(type));
        gpu_test::check_error(outcome(one, type, joined, readers), outcome(one, type, apart, readers), exact);
      }
    }
  }
}

TEST_CASE("fused batch norm: bitwise repeatable, other shapes fall back", "[gpu]") {
  const Case one{{16, 64, 28, 28}, true, true};
  for (const Readers readers : {Readers{}, Readers{true, true}}) {
    const auto first = outcome(one, at::kBFloat16, joined, readers),
               second = outcome(one, at::kBFloat16, joined, readers);
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(torch::equal(first[i].second, second[i].second));
    // Gradients that others have stay as they are; those that nobody else has may be written over.
    const auto handed_over = outcome(one, at::kBFloat16, joined, {true, readers.second, true});
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(torch::equal(first[i].second, handed_over[i].second));
  }
  // Rows, channels first, a number of channels that packs do not divide: libtorch's operators.
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{32, 16}, {4, 6, 5, 5}, {1, 64, 1, 2}}) {
    const auto x = torch::randn(sizes, at::kCUDA);
    const auto zeros = torch::zeros({sizes[1]}, at::kCUDA), ones = torch::ones({sizes[1]}, at::kCUDA);
    const auto made = std::get<0>(joined(x, {}, {}, zeros.clone(), ones.clone(), x, true));
    const auto expected = std::get<0>(apart(x, {}, {}, zeros.clone(), ones.clone(), x, true));
    CHECK(torch::allclose(made, expected, 1e-5, 1e-5));
  }
  const auto nan = torch::full({4, 8, 2, 2}, std::numeric_limits<float>::quiet_NaN(), at::kCUDA)
                       .contiguous(at::MemoryFormat::ChannelsLast);
  const auto zeros = torch::zeros({8}, at::kCUDA);
  CHECK(std::get<0>(joined(nan, {}, {}, zeros, zeros.clone(), {}, true)).isnan().all().item<bool>());
}

/// Its gradient is a tensor that nobody else holds, with sums of its columns.
struct Summing : torch::autograd::Function<Summing> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list given) {
    auto gradient = given[0].clone();
    ap::fused::attach_bias_gradient(gradient, gradient.sum(0));
    return {std::move(gradient)};
  }
};

TEST_CASE("fused ReLU backward in place: stale bias gradient is dropped", "[gpu]") {
  torch::manual_seed(6);
  for (const bool relu : {true, false}) {
    const auto drawn = [] { return torch::randn({64, 32}, at::kCUDA).requires_grad_(); };
    const auto x = drawn(), residual = drawn(), given = drawn().detach();
    const auto numbers = [](double value) { return torch::full({32}, value, at::kCUDA); };
    const auto [result, second] = joined(x, numbers(1), numbers(0), numbers(0), numbers(1), residual, relu);
    const auto gradient = torch::autograd::grad({Summing::apply(result)}, {residual}, {given})[0];
    CHECK(torch::equal(gradient, relu ? given * (result > 0) : given));
    const auto sums = ap::fused::take_bias_gradient(gradient);
    CHECK(sums.defined() == !relu);
    if (sums.defined()) CHECK(torch::equal(sums, given.sum(0)));
  }
}

}  // namespace gpu_batch_norm_test
