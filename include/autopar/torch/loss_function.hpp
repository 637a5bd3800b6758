#pragma once

#include <cstdint>
#include <type_traits>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/soft_margin_loss.h>

#include <autopar/core/error.hpp>

/// Makes an argument of an overload set, or of a function whose default arguments its type does not show:
/// `model->train_step(AUTOPAR_FUNCTION(at::smooth_l1_loss), x, y)`.
#define AUTOPAR_FUNCTION(name) [](auto&&... arguments) -> decltype(auto) { return name(arguments...); }

namespace autopar::detail {

/// Whether this is a libtorch function whose last parameter is `int64_t reduction = Reduction::Mean`.
[[nodiscard]] inline bool reduces_by_default(at::Tensor (*loss)(const at::Tensor&, const at::Tensor&, std::int64_t)) {
  return loss == &at::mse_loss || loss == &at::l1_loss || loss == &at::soft_margin_loss;
}

/// Whether a parameter after results and targets has a default value, as far as its type shows: options of
/// torch::nn::functional and optional weights.
template <class Parameter>
inline constexpr bool kHasDefault =
    std::is_class_v<std::remove_cvref_t<Parameter>>&& std::is_default_constructible_v<std::remove_cvref_t<Parameter>> &&
    !std::is_same_v<std::remove_cvref_t<Parameter>, at::Tensor>;

template <class Result, class A, class B, class... Rest, class Outputs, class Targets>
at::Tensor call_function(Result (*loss)(A, B, Rest...), Outputs& outputs, Targets& targets) {
  using MeanLoss = at::Tensor (*)(const at::Tensor&, const at::Tensor&, std::int64_t);
  if constexpr ((kHasDefault<Rest> && ...)) {
    return loss(outputs, targets, std::remove_cvref_t<Rest>{}...);
  } else if constexpr (std::is_same_v<decltype(loss), MeanLoss>) {
    if (reduces_by_default(loss)) return loss(outputs, targets, at::Reduction::Mean);
    throw InvalidArgument(
        "train_step: the loss function has a third parameter whose default is not known; pass "
        "AUTOPAR_FUNCTION(its_name), or a lambda of results and targets");
  } else {
    static_assert(
        (kHasDefault<Rest> && ...),
        "autopar: the loss function has more parameters than results and targets, whose defaults C++ does not tell; "
        "pass AUTOPAR_FUNCTION(its_name), or a lambda of results and targets");
  }
}

/// Calls `loss(outputs, targets)`: a function, a functor module such as torch::nn::CrossEntropyLoss, or a lambda.
template <class Loss, class Outputs, class Targets>
at::Tensor call_loss(const Loss& loss, Outputs& outputs, Targets& targets) {
  if constexpr (std::is_function_v<Loss>) {
    return call_function(&loss, outputs, targets);
  } else if constexpr (std::is_pointer_v<std::decay_t<Loss>>) {
    return call_function(static_cast<std::decay_t<Loss>>(loss), outputs, targets);
  } else {
    return at::Tensor(const_cast<Loss&>(loss)(outputs, targets));
  }
}

}  // namespace autopar::detail
