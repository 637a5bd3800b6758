#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace autopar {

/// A generator of its own for `device`; the default generator stays as it is.
[[nodiscard]] at::Generator make_generator(c10::Device device, std::uint64_t seed);

/// libtorch's dropout in training, 0 < p <= 1, with the draws of a seed.
/// @param in_place  the input's own memory takes the result
[[nodiscard]] at::Tensor seeded_dropout(const at::Tensor& input, double p, std::uint64_t seed, bool in_place = false);

}  // namespace autopar
