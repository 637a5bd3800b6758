#pragma once

#include <ATen/core/Tensor.h>

#include <autopar/core/split.hpp>
#include <autopar/shard/group.hpp>
#include <autopar/shard/linear_cross_entropy.hpp>

namespace autopar::detail {

/// What a chunk of logits is made of, as this rank has it.
struct ClassHeadFactors {
  at::Tensor features;  ///< [N, D], of all samples
  at::Tensor weight;    ///< [C of this rank, D]
  at::Tensor bias;      ///< [C of this rank], or undefined
};

/// `linear_cross_entropy` of classes that a group shares, but the gradient of the features is this rank's term of a
/// sum, which the caller adds up.
/// @param target  [N] @throws InvalidArgument as `parallel_cross_entropy`
[[nodiscard]] at::Tensor local_class_head(const ClassHeadFactors& factors, const at::Tensor& target, const Group& group,
                                          const Split& classes, const LinearCrossEntropyOptions& options);

}  // namespace autopar::detail
