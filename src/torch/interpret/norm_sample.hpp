#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar {

/// Statistics of one batch norm over one slice, or over several that were pooled.
struct NormSample {
  /// Per channel, in f64; of an instance norm means over its samples. The variance is biased, of an instance norm not.
  at::Tensor mean{}, variance{};
  double count = 0;        ///< elements per channel; of an instance norm, samples; 0 = none
  bool by_sample = false;  ///< of an instance norm
  bool as_given = false;   ///< as the operator left them in its running statistics: of their type, unbiased
};

/// Makes statistics as they are pooled, all at once: on a GPU kernels for each would outnumber those of the norms.
void prepare_for_pooling(const std::vector<NormSample*>& samples);

/// Adds those of one more slice, by batch norm, to those of the slices so far, so that memory does not grow with
/// micro-batches. The squares around the common mean are those around each mean and what lies between the means, which
/// no large mean spoils.
/// @source Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979
void pool(std::vector<NormSample>& seen, std::vector<NormSample> next);

}  // namespace autopar
