#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/fused/pointwise/expression.hpp"

namespace autopar::fused::pointwise {

constexpr std::size_t kMostDims = 6, kMostTensors = 20;

/// The addresses of a kernel's tensors, passed by value: inputs, then results.
struct Addresses {
  std::array<void*, kMostTensors> of{};
};
/// The layout of a kernel's tensors. The last dim is counted in packs of neighbouring elements; each thread has one
/// pack.
struct Places {
  std::array<std::array<long long, kMostDims>, kMostTensors> strides{};  ///< in elements; in the last dim from pack to
                                                                         ///< pack
  std::array<unsigned, kMostDims> sizes{};
  std::array<unsigned, kMostTensors> inner{};  ///< stride within a pack: 0 or 1
  unsigned packs = 0;                          ///< total number of packs
  int dims = 0;
};

/// How a kernel covers tensors of one size.
struct Cover {
  Places places;
  Addresses addresses;
  bool in_packs = false;  ///< run `pointwise_packs`, otherwise `pointwise_elements`
};

/// Elements of a pack: as many as 16 bytes hold of the narrowest floating-point type among the tensors.
[[nodiscard]] int pack_of(const Expression& expression);

/// CUDA C of two kernels (Addresses, Places): `pointwise_packs`, and `pointwise_elements` whose packs are single
/// elements. The text must follow `kKernelPrelude`.
[[nodiscard]] std::string code_of(const Expression& expression);

/// @param tensors  inputs and results in order; results have `sizes`, inputs broadcast to them
/// @return whether the kernels support them: not too many elements, and not too many dims after merging
[[nodiscard]] bool cover(const std::vector<at::Tensor>& tensors, at::IntArrayRef sizes, int pack, Cover& made);

}  // namespace autopar::fused::pointwise
