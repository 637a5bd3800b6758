#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace autopar::fused {

/// Whether a device has kernels for norms of this order: 1, 2 or infinity.
[[nodiscard]] bool has_norm_kernels(c10::Device device, double p);
/// Whether they take a tensor: real, without gaps, on the device.
[[nodiscard]] bool takes_norm(const at::Tensor& tensor, c10::Device device);

/// Norms of pieces of tensors, 1-dim in f64: one launch for up to 200 tensors of a type. Which pieces follows from
/// sizes alone.
/// @pre has_norm_kernels for their device, and takes_norm for each
[[nodiscard]] at::Tensor piecewise_norms(const std::vector<at::Tensor>& tensors, double p);

/// [ranks] in f64: the norm of norms at the place of this rank, zeros elsewhere. One launch.
/// @param norms  f64 on a device for which has_norm_kernels
[[nodiscard]] at::Tensor norm_by_rank(const at::Tensor& norms, double p, int ranks, int rank);

/// A norm, and what scales tensors of this norm to at most a given one.
struct ClippedNorm {
  at::Tensor norm, factor;  ///< 0-dim in f64
  at::Tensor given;         ///< the norm in the type that the user gets
};

/// Of the norm of norms, as torch::nn::utils::clip_grad_norm_. One launch.
/// @param norms  as `norm_by_rank` takes them
[[nodiscard]] ClippedNorm clip_by_norm(const at::Tensor& norms, double p, double max_norm, c10::ScalarType type);

}  // namespace autopar::fused
