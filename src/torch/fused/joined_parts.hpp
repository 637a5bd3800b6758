#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/joined_parts_source.hpp"

namespace autopar::fused {

/// Writes each part to its place in `whole` in one pass on a GPU. The kernel has a bias-gradient epilogue: it attaches
/// the sums of the written rows to `whole`, see fused/bias_gradient.hpp.
/// @param whole   [..., columns] without gaps
/// @param places  views of `whole` that cover it, each element once
/// @param parts   with the places' sizes; undefined: zeros
/// @return false if nothing was written: no such kernel, or parts that are not columns in whole packs of 16 bytes
[[nodiscard]] bool join_parts(const at::Tensor& whole, const std::vector<at::Tensor>& places,
                              const std::vector<at::Tensor>& parts);

/// The layout of parts, without their addresses; none if they are not columns of `whole` in whole packs.
[[nodiscard]] std::optional<kernels::JoinedParts> columns_of_parts(const at::Tensor& whole,
                                                                   const std::vector<at::Tensor>& places,
                                                                   const std::vector<at::Tensor>& parts);

}  // namespace autopar::fused
