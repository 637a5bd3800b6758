#pragma once

#include <ATen/core/Tensor.h>

#include "torch/fused/destination.hpp"

namespace autopar::fused {

/// The sum of addends in fp32, in their order, on any device. It has the same bits with and without kernels.
/// @param addends  [members, elements], bf16
/// @param sum  [elements]: fp32; or bf16 that is written, rounded once from fp32
/// @cost on a GPU one pass: it reads the addends once
void add_up(const at::Tensor& addends, const at::Tensor& sum, Destination destination);

}  // namespace autopar::fused
