#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <catch_shim.hpp>

#include "torch/fused/fused_ops.hpp"

// What an operator in kernels of its own, and libtorch's, are away from double precision.
namespace gpu_test {

/// Results and gradients by name.
using Outcome = std::vector<std::pair<std::string, torch::Tensor>>;

/// The same numbers in all types, on the GPU.
inline torch::Tensor at_type(const torch::Tensor& numbers, c10::ScalarType type) {
  return numbers.to(at::kBFloat16).to(type).to(at::kCUDA);
}

/// An operator of the library.
template <class Signature>
c10::TypedOperatorHandle<Signature> operator_named(std::string_view name) {
  return autopar::fused::fused_operator(name).typed<Signature>();
}

inline Outcome in_double(Outcome outcome) {
  for (auto& [name, value] : outcome) value = value.detach().to(at::kDouble);
  return outcome;
}

inline double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a - b).norm() / (b.norm() + 1e-30)).item<double>();
}

/// At most 1.5 times as far from `exact` as libtorch is.
inline void check_error(const Outcome& made, const Outcome& libtorch, const Outcome& exact) {
  REQUIRE(made.size() == exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    INFO(exact[i].first);
    const auto error = distance(made[i].second, exact[i].second),
               of_libtorch = distance(libtorch[i].second, exact[i].second);
    INFO(error << ", libtorch " << of_libtorch);
    CHECK(error <= 1.5 * of_libtorch + 1e-6);
  }
}

/// The worst number, beside the largest.
inline double worst_error(const torch::Tensor& made, const torch::Tensor& exact) {
  return ((made.to(at::kDouble) - exact).abs().max() / (exact.abs().max() + 1e-30)).item<double>();
}

/// Sums that a gradient brought along, of the numbers that it stores, beside libtorch's.
inline void check_summed_columns(const torch::Tensor& sums, const torch::Tensor& gradient) {
  const auto rows = gradient.flatten(0, -2);
  const auto exact = rows.to(at::kDouble).sum(0);
  CHECK(worst_error(sums, exact) <= 1.5 * worst_error(rows.sum(0, false, at::kFloat), exact) + 1e-7);
}

/// Gradients of 16-bit layers, from a batch at once and from four slices of it, beside those of double precision.
inline void check_slices(const std::vector<torch::Tensor>& of_one, const std::vector<torch::Tensor>& of_four,
                         const std::vector<torch::Tensor>& exact) {
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const auto once = distance(of_one[i], exact[i].grad()), added = distance(of_four[i], exact[i].grad());
    INFO("parameter " << i << ": " << once << " in one slice, " << added << " in four");
    CHECK(once < 0.02);
    CHECK(added <= 1.25 * once);
  }
}

}  // namespace gpu_test
