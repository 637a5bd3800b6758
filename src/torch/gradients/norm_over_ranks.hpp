#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace autopar::gradients {

/// The p-norm of tensors whose elements lie on several ranks, as torch::nn::utils::clip_grad_norm_ takes it: the norm
/// of each tensor, then the norm of these. In double precision; small and large elements neither vanish nor overflow
/// under a large p.
///
///   NormOverRanks norm(2, world.size(), world.rank(), device);
///   norm.add(gradient);                        // of what this rank counts
///   norm.complete(sums.sum({norm.by_rank()})[0]);   // the same on all ranks
class NormOverRanks {
 public:
  /// @param p  positive, may be infinite
  NormOverRanks(double p, int ranks, int self, c10::Device device);

  /// @param times  how often it counts
  void add(const at::Tensor& part, std::int64_t times = 1);
  /// [ranks] in f64: this rank's norm in its place, else zeros.
  [[nodiscard]] at::Tensor by_rank() const;
  /// 0-dim. @param summed  `by_rank` of all ranks
  [[nodiscard]] at::Tensor complete(const at::Tensor& summed) const;

 private:
  [[nodiscard]] at::Tensor norm_of(const at::Tensor& numbers) const;

  double p_;
  int ranks_, self_;
  c10::Device device_;
  std::vector<at::Tensor> norms_;
};

/// What scales gradients of this norm to `max_norm` at most, as libtorch has it.
[[nodiscard]] at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

}  // namespace autopar::gradients
