#include "torch/autograd/parameter_cast.hpp"

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

// Casts of parameters, and their gradients, against libtorch's `to`.
namespace parameter_cast_test {

using namespace autopar;
using torch::Tensor;

constexpr auto kLast = at::MemoryFormat::ChannelsLast, kPlain = at::MemoryFormat::Contiguous;

ValueInfo form_like(const Tensor& tensor) {
  ValueInfo info;
  info.dtype = tensor.scalar_type();
  for (const auto size : tensor.sizes()) info.sizes.push_back({0, size});
  for (const auto stride : tensor.strides()) info.strides.push_back({0, stride});
  return info;
}

TEST_CASE("parameter_cast: layouts and bits of casts and gradients") {
  torch::manual_seed(6);
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    for (const auto of_parameter : {kPlain, kLast}) {
      for (const auto of_cast : {kPlain, kLast}) {
        auto parameter = torch::randn({5, 6, 3, 2}).contiguous(of_parameter).requires_grad_();
        const auto form = form_like(torch::empty({5, 6, 3, 2}, type).contiguous(of_cast));
        const auto made = autograd::cast_of(parameter, form);
        CHECK_FALSE(made.requires_grad());
        if (of_cast == kLast) CHECK(made.is_contiguous(kLast));
        const auto cast = autograd::with_history_of(parameter, made);
        const auto gradient = torch::randn({5, 6, 3, 2}).to(type).contiguous(of_cast);
        (cast * gradient).sum().backward();
        const auto ours = parameter.grad();
        parameter.mutable_grad() = Tensor();
        const auto theirs = parameter.to(type);
        CHECK(torch::equal(made, theirs));
        (theirs * gradient).sum().backward();
        CHECK(torch::equal(ours, parameter.grad()));
        CHECK(ours.strides() == parameter.strides());
        CHECK(ours.scalar_type() == torch::kFloat);
      }
    }
  }
}

TEST_CASE("parameter_cast: memory as that of kept copies") {
  const auto weight = torch::randn({30, 5});
  const auto cast = autograd::cast_of(weight, form_like(weight.to(torch::kBFloat16)));
  CHECK(torch::equal(cast, weight.to(torch::kBFloat16)));
  CHECK(cast.storage().nbytes() == 32 * 5 * 2);
  CHECK(autograd::cast_of(weight, form_like(weight)).is_same_size(weight));
  CHECK(autograd::cast_of(weight, form_like(weight)).data_ptr() == weight.data_ptr());
}

/// A sum of rows times numbers, which are read in 16 bits and have their gradient in the type of the rows.
struct Weighted : torch::autograd::Function<Weighted> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& rows, const Tensor& numbers) {
    context->save_for_backward({rows});
    return (rows * numbers).sum();
  }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<Tensor>& given) {
    return {Tensor(), given[0] * context->get_saved_variables()[0].sum(0)};
  }
};

TEST_CASE("parameter_cast: fp32 gradients arrive and add up unrounded") {
  torch::manual_seed(7);
  const auto parameter = torch::randn({40}).requires_grad_(), rows = torch::randn({30, 40});
  const auto form = form_like(torch::empty({40}, torch::kBFloat16));
  const auto gradient_of = [&](const std::function<Tensor(const Tensor&)>& loss) {
    const auto cast = autograd::with_history_of(parameter, autograd::cast_of(parameter, form));
    return torch::autograd::grad({loss(cast)}, {parameter})[0];
  };
  const auto of_rows = rows.sum(0), half = rows[0].to(torch::kBFloat16);
  REQUIRE_FALSE(torch::equal(of_rows, of_rows.to(torch::kBFloat16).to(torch::kFloat)));
  CHECK(torch::equal(gradient_of([&](const Tensor& cast) { return Weighted::apply(rows, cast); }), of_rows));
  CHECK(torch::equal(
      gradient_of([&](const Tensor& cast) { return Weighted::apply(rows, cast) + Weighted::apply(rows, cast); }),
      of_rows + of_rows));
  CHECK(torch::equal(gradient_of([&](const Tensor& cast) { return (cast * half).sum().to(torch::kFloat); }),
                     half.to(torch::kFloat)));
}

TEST_CASE("parameter_cast: recorded by autograd where gradients are") {
  const auto frozen = torch::randn({4, 3}), parameter = torch::randn({4, 3}).requires_grad_();
  const auto form = form_like(torch::empty({4, 3}, torch::kHalf));
  CHECK_FALSE(autograd::with_history_of(frozen, autograd::cast_of(frozen, form)).requires_grad());
  CHECK(autograd::with_history_of(parameter, autograd::cast_of(parameter, form)).requires_grad());
  const torch::NoGradGuard no_grad;
  CHECK_FALSE(autograd::with_history_of(parameter, autograd::cast_of(parameter, form)).requires_grad());
}

TEST_CASE("in_form_of: an equal form is passed on, others are converted") {
  const auto parameter = torch::zeros({4, 6, 3, 3});
  const auto taken = torch::randn({4, 6, 3, 3}), last = taken.contiguous(kLast), half = last.to(torch::kBFloat16);
  CHECK(autograd::in_form_of(parameter, taken).is_same(taken));
  CHECK(autograd::in_form_of(Tensor(), half).is_same(half));
  for (const auto& given : {last, half}) {
    const auto made = autograd::in_form_of(parameter, given);
    CHECK(made.strides() == parameter.strides());
    CHECK(torch::equal(made, given.to(torch::kFloat)));
  }
  const auto laid_out = autograd::in_form_of(parameter.contiguous(kLast), half);
  CHECK(laid_out.is_contiguous(kLast));
  CHECK(torch::equal(laid_out, half.to(torch::kFloat)));
  CHECK(autograd::in_form_of(parameter.to(torch::kBFloat16), half).is_same(half));
  CHECK(autograd::in_form_of(parameter.to(torch::kBFloat16), last).is_same(last));  // rounded once, where it is added
  CHECK(autograd::in_form_of(parameter.to(torch::kDouble), half).is_same(half));
  CHECK(autograd::in_form_of(torch::zeros({3}), half).is_same(half));
}

}  // namespace parameter_cast_test
