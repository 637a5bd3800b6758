#pragma once

#include <array>
#include <cstdint>

#include <autopar/core/cluster.hpp>
#include <autopar/core/enum_text.hpp>

namespace autopar {

/// The element types that a model computes in. Parameters, sums of gradients and the optimizer stay in float32.
enum class Precision : std::uint8_t {
  kModule,       ///< the module's own
  kTf32,         ///< float32, with products in TF32
  kBf16,         ///< as in autocast
  kBf16Compute,  ///< all in bf16, except losses and sums over the batch
  kFp16,         ///< as in autocast, with a loss scale
  kFp8,          ///< as bf16-compute, with products of linear layers in 8 bits
};
template <>
inline constexpr auto kEnumTexts<Precision> = std::to_array<EnumText<Precision>>({{Precision::kModule, "module"},
                                                                                  {Precision::kTf32, "tf32"},
                                                                                  {Precision::kBf16, "bf16"},
                                                                                  {Precision::kBf16Compute,
                                                                                   "bf16-compute"},
                                                                                  {Precision::kFp16, "fp16"},
                                                                                  {Precision::kFp8, "fp8"}});

/// Whether activations are in bf16 throughout.
[[nodiscard]] constexpr bool computes_in_bf16(Precision precision) {
  return precision == Precision::kBf16Compute || precision == Precision::kFp8;
}

/// The cluster for a model with `Options::precision`: with TF32, float32 products run at its rate. Other element types
/// appear in the captured graph.
[[nodiscard]] inline Cluster at_precision(Cluster cluster, Precision precision) {
  if (precision == Precision::kTf32) cluster.device.f32 = cluster.device.tf32;
  return cluster;
}

}  // namespace autopar
