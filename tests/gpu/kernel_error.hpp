#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <catch_shim.hpp>

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
  return c10::Dispatcher::singleton().findSchemaOrThrow(std::string(name).c_str(), "").typed<Signature>();
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

}  // namespace gpu_test
