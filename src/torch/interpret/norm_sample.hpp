#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar::interpret {

/// Statistics of one batch norm over one slice, or pooled over several slices.
struct NormSample {
  /// Per channel, in f64. For an instance norm, means over its samples. The variance is biased, but for an instance
  /// norm unbiased.
  at::Tensor mean{}, variance{};
  double count = 0;        ///< elements per channel; for an instance norm, samples; 0 = none
  bool by_sample = false;  ///< an instance norm
  bool as_given = false;   ///< as the operator wrote them to its running statistics: in their type, unbiased
};

/// Converts statistics to the form that is pooled, all at once. On a GPU, separate kernels for each norm would
/// outnumber the kernels of the norms.
void prepare_for_pooling(const std::vector<NormSample*>& samples);

/// Pools the statistics of one more slice, by batch norm, into the earlier slices' statistics. So memory does not grow
/// with micro-batches. The squares around the common mean are the squares around each mean plus the squared differences
/// of the means. A large mean does not harm that sum's accuracy.
/// @source Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979
void pool(std::vector<NormSample>& seen, std::vector<NormSample> next);

}  // namespace autopar::interpret
