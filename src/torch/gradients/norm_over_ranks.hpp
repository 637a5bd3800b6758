#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "torch/fused/gradient_norm.hpp"

namespace autopar::gradients {

/// The p-norm of tensors whose elements lie on several ranks. As in torch::nn::utils::clip_grad_norm_, it is the norm
/// of the tensors' norms. Computed in double precision, without overflow or underflow for a large p. For p = 1, 2 and
/// infinity a GPU runs a kernel for up to 200 tensors, and one more here and in `clip`. Equal calls give equal bits.
///
///   NormOverRanks norm(2, world.size(), world.rank(), device);
///   norm.add(gradient);                        // of what this rank counts
///   norm.complete(sums.sum({norm.by_rank()})[0]);   // the same on all ranks
class NormOverRanks {
 public:
  /// @param p  positive, may be infinite
  NormOverRanks(double p, int ranks, int self, c10::Device device);

  /// Read when `by_rank` is called.
  void add(const at::Tensor& part);
  /// [ranks] in f64: this rank's norm at its index, zeros elsewhere.
  [[nodiscard]] at::Tensor by_rank() const;
  /// The norm over all ranks, 0-dim.
  /// @param summed  sum of all ranks' `by_rank`
  [[nodiscard]] at::Tensor complete(const at::Tensor& summed) const;
  /// The same, and what scales the tensors to at most `max_norm`, as in libtorch.
  /// @param type  of the norm that a user gets
  [[nodiscard]] fused::ClippedNorm clip(const at::Tensor& summed, double max_norm, c10::ScalarType type) const;

 private:
  [[nodiscard]] at::Tensor norm_of(const at::Tensor& numbers) const;
  /// Of the parts, or of pieces of them, 1-dim; parts of one type at once.
  [[nodiscard]] std::vector<at::Tensor> norms() const;

  double p_;
  int ranks_, self_;
  c10::Device device_;
  bool has_kernels_;
  std::vector<at::Tensor> parts_;
};

}  // namespace autopar::gradients
