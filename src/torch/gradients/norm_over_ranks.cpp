#include "torch/gradients/norm_over_ranks.hpp"

#include <cmath>
#include <map>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace autopar::gradients {

NormOverRanks::NormOverRanks(double p, int ranks, int self, c10::Device device)
    : p_(p), ranks_(ranks), self_(self), device_(device) {}

/// @param numbers  at least one
at::Tensor NormOverRanks::norm_of(const at::Tensor& numbers) const {
  const auto plain = [&](const at::Tensor& real) {
    return at::linalg_vector_norm(real, p_, {}, false, at::kDouble).to(device_);
  };
  const auto real = numbers.is_complex() ? numbers.abs() : numbers;
  if (p_ == 1 || p_ == 2 || std::isinf(p_)) return plain(real);
  // Powers of numbers far from one overflow or underflow, so they are divided by the largest first.
  const auto largest = real.abs().amax();
  const auto unit = at::where(largest.gt(0).logical_and(largest.isfinite()), largest, at::ones_like(largest));
  return plain(real.div(unit)).mul(unit.to(device_, at::kDouble));
}

void NormOverRanks::add(const at::Tensor& part) {
  if (part.numel() > 0) parts_.push_back(part.detach());
}

std::vector<at::Tensor> NormOverRanks::norms() const {
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>, std::vector<at::Tensor>> alike;
  std::vector<at::Tensor> norms;
  const bool has_lists = p_ == 1 || p_ == 2 || std::isinf(p_);
  for (const auto& part : parts_) {
    if (has_lists && !part.is_complex())
      alike[{part.device().type(), part.device().index(), part.scalar_type()}].push_back(part);
    else
      norms.push_back(norm_of(part));
  }
  for (const auto& [kind, list] : alike) {
    for (const auto& norm : at::_foreach_norm(list, p_, at::kDouble)) norms.push_back(norm.to(device_));
  }
  return norms;
}

at::Tensor NormOverRanks::by_rank() const {
  const at::NoGradGuard no_grad;
  auto all = at::zeros({ranks_}, at::dtype(at::kDouble).device(device_));
  if (!parts_.empty()) all.select(0, self_).copy_(norm_of(at::stack(norms())));
  return all;
}

at::Tensor NormOverRanks::complete(const at::Tensor& summed) const { return norm_of(summed); }

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  return norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
}

}  // namespace autopar::gradients
