#pragma once

#include <array>
#include <cstdint>

#include <autopar/core/enum_text.hpp>

namespace autopar {

/// Whether something is done. kAuto: autopar decides.
enum class Switch : std::uint8_t { kAuto, kOn, kOff };
template <>
inline constexpr auto kEnumTexts<Switch> =
    std::to_array<EnumText<Switch>>({{Switch::kAuto, "auto"}, {Switch::kOn, "on"}, {Switch::kOff, "off"}});

/// How a linear layer whose result only a cross entropy reads computes its logits.
enum class ClassHead : std::uint8_t {
  kAuto,
  kWhole,    ///< at once
  kChunked,  ///< in chunks, and again in the backward
};
template <>
inline constexpr auto kEnumTexts<ClassHead> = std::to_array<EnumText<ClassHead>>({{ClassHead::kAuto, "auto"},
                                                                                  {ClassHead::kWhole, "whole"},
                                                                                  {ClassHead::kChunked, "chunked"}});

/// Whether the device's work of repeated steps is recorded and replayed. Nobody can force it: some steps cannot be
/// recorded.
enum class CudaGraphs : std::uint8_t { kAuto, kOff };
template <>
inline constexpr auto kEnumTexts<CudaGraphs> = std::to_array<EnumText<CudaGraphs>>({{CudaGraphs::kAuto, "auto"},
                                                                                    {CudaGraphs::kOff, "off"}});

/// The element type in which ranks send each other partial sums of fp32 gradients. Other gradients are sent as they
/// are.
enum class ReduceDtype : std::uint8_t {
  kFp32,
  kBf16,  ///< each partial sum is rounded and sent once; receivers add in fp32
};
template <>
inline constexpr auto kEnumTexts<ReduceDtype> = std::to_array<EnumText<ReduceDtype>>({{ReduceDtype::kFp32, "fp32"},
                                                                                      {ReduceDtype::kBf16, "bf16"}});

/// What is kept in host memory instead of device memory.
enum class Offload : std::uint8_t {
  kNone,
  kOptimizer,  ///< gradients, optimizer state and the parameters that the optimizer steps; it runs on the host
};
template <>
inline constexpr auto kEnumTexts<Offload> = std::to_array<EnumText<Offload>>({{Offload::kNone, "none"},
                                                                              {Offload::kOptimizer, "optimizer"}});

/// The samples that a batch norm in training mode normalises by.
enum class BatchNorm : std::uint8_t {
  kMicrobatch,
  kExact,  ///< the whole batch: synchronised, one micro-batch
};
template <>
inline constexpr auto kEnumTexts<BatchNorm> =
    std::to_array<EnumText<BatchNorm>>({{BatchNorm::kMicrobatch, "microbatch"}, {BatchNorm::kExact, "exact"}});

/// The devices of the ranks. kAuto: CUDA devices, if this host and this build have some.
enum class DeviceChoice : std::uint8_t { kAuto, kCpu, kCuda };
template <>
inline constexpr auto kEnumTexts<DeviceChoice> = std::to_array<EnumText<DeviceChoice>>({{DeviceChoice::kAuto, "auto"},
                                                                                        {DeviceChoice::kCpu, "cpu"},
                                                                                        {DeviceChoice::kCuda, "cuda"}});

/// Where costs come from.
enum class CostChoice : std::uint8_t {
  kAuto,      ///< profiled on CUDA devices
  kRoofline,  ///< from peak rates
  kProfiled,  ///< operators and links are run and timed
};
template <>
inline constexpr auto kEnumTexts<CostChoice> = std::to_array<EnumText<CostChoice>>(
    {{CostChoice::kAuto, "auto"}, {CostChoice::kRoofline, "roofline"}, {CostChoice::kProfiled, "profiled"}});

}  // namespace autopar
