#include "torch/interpret/parameter_cast.hpp"

#include <cstdint>
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

TEST_CASE("casts of parameters lie as they are read, and gradients as parameters do, to the bit") {
  torch::manual_seed(6);
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    for (const auto of_parameter : {kPlain, kLast}) {
      for (const auto of_cast : {kPlain, kLast}) {
        auto parameter = torch::randn({5, 6, 3, 2}).contiguous(of_parameter).requires_grad_();
        const auto form = form_like(torch::empty({5, 6, 3, 2}, type).contiguous(of_cast));
        const auto made = cast_of(parameter, form);
        CHECK_FALSE(made.requires_grad());
        if (of_cast == kLast) CHECK(made.is_contiguous(kLast));
        const auto cast = with_history_of(parameter, made);
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

TEST_CASE("a cast has a history where gradients are recorded") {
  const auto frozen = torch::randn({4, 3}), parameter = torch::randn({4, 3}).requires_grad_();
  const auto form = form_like(torch::empty({4, 3}, torch::kHalf));
  CHECK_FALSE(with_history_of(frozen, cast_of(frozen, form)).requires_grad());
  CHECK(with_history_of(parameter, cast_of(parameter, form)).requires_grad());
  const torch::NoGradGuard no_grad;
  CHECK_FALSE(with_history_of(parameter, cast_of(parameter, form)).requires_grad());
}

TEST_CASE(
    "a gradient in the form of its parameter is handed on, another is laid out and widened, or left to autograd") {
  const auto parameter = torch::zeros({4, 6, 3, 3});
  const auto taken = torch::randn({4, 6, 3, 3}), last = taken.contiguous(kLast), half = last.to(torch::kBFloat16);
  CHECK(in_form_of(parameter, taken).is_same(taken));
  CHECK(in_form_of(Tensor(), half).is_same(half));
  for (const auto& given : {last, half}) {
    const auto made = in_form_of(parameter, given);
    CHECK(made.strides() == parameter.strides());
    CHECK(torch::equal(made, given.to(torch::kFloat)));
  }
  const auto laid_out = in_form_of(parameter.contiguous(kLast), half);
  CHECK(laid_out.is_contiguous(kLast));
  CHECK(torch::equal(laid_out, half.to(torch::kFloat)));
  CHECK(in_form_of(parameter.to(torch::kBFloat16), half).is_same(half));
  CHECK(in_form_of(parameter.to(torch::kBFloat16), last).is_same(last));  // rounded once, where it is added
  CHECK(in_form_of(parameter.to(torch::kDouble), half).is_same(half));
  CHECK(in_form_of(torch::zeros({3}), half).is_same(half));
}

}  // namespace parameter_cast_test
