#pragma once

#include <optional>
#include <string>

#include <autopar/cost/precision.hpp>

namespace autopar::training {

/// Dense peak of matrix products in NVIDIA's data sheets, in floating-point operations a second.
/// @param device     its name, as CUDA gives it
/// @param precision  as Options::precision
/// @return nothing for devices and precisions that are not in the table
inline std::optional<double> peak_flops(const std::string& device, Precision precision) {
  using enum Precision;
  const bool half = precision == kBf16 || computes_in_bf16(precision) || precision == kFp16;
  if (!half && precision != kTf32) return std::nullopt;
  for (const char* hopper : {"H200", "H100", "GH200"}) {
    if (device.find(hopper) != std::string::npos) return half ? 989e12 : 494.5e12;
  }
  if (device.find("A100") != std::string::npos) return half ? 312e12 : 156e12;
  return std::nullopt;
}

}  // namespace autopar::training
