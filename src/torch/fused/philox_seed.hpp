#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace autopar::fused {

/// The Philox seed of random draws. It is a number or, while a step is recorded, a place in the device's memory. The
/// place holds the number when kernels read it.
struct PhiloxSeed {
  std::uint64_t number = 0;
  at::Tensor place{};  ///< [2] i64 on the device: the seed, and 0; undefined: `number`
};

/// The seed as an operator's argument: the place, or [1] i64 on the host.
[[nodiscard]] at::Tensor to_tensor(const PhiloxSeed& seed);
[[nodiscard]] PhiloxSeed to_seed(const at::Tensor& tensor);

/// A new generator for `device`; the default generator does not change.
[[nodiscard]] at::Generator make_generator(c10::Device device, const PhiloxSeed& seed);

}  // namespace autopar::fused
