#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace autopar::fused {

/// What draws follow from: a number, or while a step is recorded a place in the device's memory, which holds the number
/// when kernels read it.
struct DrawSeed {
  std::uint64_t number = 0;
  at::Tensor place{};  ///< [2] i64 on the device: the seed, and 0; undefined: `number`
};

/// As an operator takes it: the place, or [1] i64 on the host.
[[nodiscard]] at::Tensor to_tensor(const DrawSeed& seed);
[[nodiscard]] DrawSeed to_seed(const at::Tensor& tensor);

/// A generator of its own for `device`; the default generator stays as it is.
[[nodiscard]] at::Generator make_generator(c10::Device device, const DrawSeed& seed);

}  // namespace autopar::fused
