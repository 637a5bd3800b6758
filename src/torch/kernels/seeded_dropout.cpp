#include "torch/kernels/seeded_dropout.hpp"

#include <tuple>

#include <ATen/ops/_fused_dropout.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

namespace autopar {

// libtorch's own kernels and formula (aten/src/ATen/native/Dropout.cpp), with a generator of our own.
at::Tensor seeded_dropout(const at::Tensor& input, double p, const DrawSeed& seed, bool in_place) {
  if (input.is_cuda() && !in_place && p < 1)
    return std::get<0>(at::_fused_dropout(input, 1 - p, make_generator(input.device(), seed)));
  const auto keep = p == 1 ? at::zeros_like(input)
                           : at::empty_like(input).bernoulli_(1 - p, make_generator(input.device(), seed)).div_(1 - p);
  return in_place ? input.mul_(keep) : input.mul(keep);
}

}  // namespace autopar
