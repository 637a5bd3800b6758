#include "torch/fused/seeded_dropout.hpp"

#include <tuple>
#include <utility>

#include <ATen/ops/_fused_dropout.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "ops/names.hpp"

namespace autopar::fused {

// libtorch's kernels and formula (aten/src/ATen/native/Dropout.cpp), with our own generator.
at::Tensor seeded_dropout(const at::Tensor& input, double p, const PhiloxSeed& seed, bool in_place) {
  if (input.is_cuda() && !in_place && p < 1)
    return std::get<0>(at::_fused_dropout(input, 1 - p, make_generator(input.device(), seed)));
  const auto keep = p == 1 ? at::zeros_like(input)
                           : at::empty_like(input).bernoulli_(1 - p, make_generator(input.device(), seed)).div_(1 - p);
  return in_place ? input.mul_(keep) : input.mul(keep);
}

bool run_by_seed(replay::ReplayCall& call, const PhiloxSeed& seed) {
  const auto& name = call.node.op.schema().name();
  const bool in_place = name == ops::kDropoutInPlace;
  if (!in_place && name != ops::kDropout) return false;
  const auto input = call.stack[0].toTensor();
  const auto p = call.stack[1].toDouble();
  const bool trains = call.stack[2].toBool();
  if (!trains || p <= 0 || input.numel() == 0) {
    call.call_original();
    return true;
  }
  auto dropped = seeded_dropout(input, p, seed, in_place);
  call.stack.clear();
  call.stack.emplace_back(std::move(dropped));
  return true;
}

}  // namespace autopar::fused
