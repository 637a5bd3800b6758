#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/fused/pointwise/expression.hpp"

namespace autopar::fused::pointwise {

constexpr std::size_t kMostDims = 6, kMostTensors = 20;

/// What a kernel takes, by value: inputs, then results.
struct Addresses {
  std::array<void*, kMostTensors> of{};
};
/// Where the elements of a kernel's tensors are. The last dim is counted in packs of neighbours, of which each thread
/// has one.
struct Places {
  std::array<std::array<long long, kMostDims>, kMostTensors> strides{};  ///< in elements; of the last dim: of a pack
  std::array<unsigned, kMostDims> sizes{};
  std::array<unsigned, kMostTensors> inner{};  ///< stride within a pack: 0 or 1
  unsigned packs = 0;                          ///< in all
  int dims = 0;
};

/// How a kernel covers tensors of one size.
struct Cover {
  Places places;
  Addresses addresses;
  bool in_packs = false;  ///< `pointwise_packs`, else `pointwise_elements`
};

/// Elements of a pack: 16 bytes of the narrowest floating point numbers among the tensors.
[[nodiscard]] int pack_of(const Expression& expression);

/// CUDA C of two kernels (Addresses, Places): `pointwise_packs` and `pointwise_elements`, whose packs are single ones.
/// They stand behind `kKernelPrelude`.
[[nodiscard]] std::string code_of(const Expression& expression);

/// @param tensors  inputs and results in order; the results of `sizes`, the inputs broadcast to them
/// @return whether the kernels can: elements are not too many, nor the dims that cannot be joined
[[nodiscard]] bool cover(const std::vector<at::Tensor>& tensors, at::IntArrayRef sizes, int pack, Cover& made);

}  // namespace autopar::fused::pointwise
