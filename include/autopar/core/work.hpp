#pragma once

#include <cstdint>

#include <autopar/core/dtype.hpp>
#include <autopar/core/units.hpp>

namespace autopar {

/// Classes of operators by how they use a device.
enum class OpClass : std::uint8_t {
  kMatmul,       ///< bound by matrix units if large
  kConvolution,  ///< bound by matrix units if large
  kAttention,    ///< fused attention
  kMemory,       ///< element-wise, normalisation, reduction, gather: bound by memory bandwidth
  kView,         ///< no work
};

/// Arithmetic, memory traffic and launches of one execution on n samples.
struct Work {
  Affine flops;
  Affine bytes;
  Affine launches;  ///< number of operators (the per-sample part is normally 0)
  Work& operator+=(const Work& other) {
    flops += other.flops;
    bytes += other.bytes;
    launches += other.launches;
    return *this;
  }
  friend bool operator==(const Work&, const Work&) = default;
};

/// Work in an atom, of one class and element type.
struct WorkItem {
  OpClass op_class = OpClass::kMemory;
  DType dtype = DType::kF32;
  Work forward;
  Work backward;
  friend bool operator==(const WorkItem&, const WorkItem&) = default;
};

}  // namespace autopar
