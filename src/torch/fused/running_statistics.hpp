#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/running_statistics_source.hpp"

namespace autopar::fused {

/// What a rank has seen of a batch norm, and the running statistics that it updates.
struct NormStatistics {
  at::Tensor mean, variance;  ///< per channel; undefined: nothing was seen
  double count = 0;           ///< elements per channel; for an instance norm, samples
  bool by_sample = false;     ///< an instance norm
  bool is_unbiased = false;   ///< so is the variance
  at::Tensor running_mean, running_variance;
  double momentum = 0;
};

/// Running statistics of batch norms over several ranks: each step is one launch for up to 64 norms. Two passes, so
/// that variances do not suffer from large means.
///
///   const PooledStatistics pooled(norms);
///   const auto sums = over_ranks(pooled.sums());
///   const auto squares = over_ranks(pooled.squares(sums));
///   pooled.blend(sums, squares);
class PooledStatistics {
 public:
  /// Whether there are kernels for these: f32 or f64 without gaps, all on one GPU.
  [[nodiscard]] static bool takes(const std::vector<NormStatistics>& norms);

  /// @param norms  at least one; running statistics that are given twice are updated twice, in their order
  /// @pre takes
  explicit PooledStatistics(const std::vector<NormStatistics>& norms);

  /// [2, channels of all norms] in f64: means times counts, and counts.
  [[nodiscard]] at::Tensor sums() const;
  /// [channels of all norms] in f64: squares around the means.
  /// @param sums  of all ranks
  [[nodiscard]] at::Tensor squares(const at::Tensor& sums) const;
  /// @param sums, squares  of all ranks
  void blend(const at::Tensor& sums, const at::Tensor& squares) const;

 private:
  template <class... Arguments>
  void launch(const char* kernel, Arguments... arguments) const;

  std::vector<NormStatistics> norms_;  ///< what the tables refer to
  std::vector<kernels::StatisticsTable> tables_;
  int channels_ = 0;
};

}  // namespace autopar::fused
