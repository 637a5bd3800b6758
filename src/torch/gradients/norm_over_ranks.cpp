#include "torch/gradients/norm_over_ranks.hpp"

#include <cmath>
#include <map>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace autopar::gradients {

NormOverRanks::NormOverRanks(double p, int ranks, int self, c10::Device device)
    : p_(p), ranks_(ranks), self_(self), device_(device), has_kernels_(fused::has_norm_kernels(device, p)) {}

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
  std::vector<at::Tensor> in_kernels, norms;
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>, std::vector<at::Tensor>> in_lists;
  const bool has_lists = p_ == 1 || p_ == 2 || std::isinf(p_);
  for (const auto& part : parts_) {
    if (has_kernels_ && fused::takes_norm(part, device_))
      in_kernels.push_back(part);
    else if (has_lists && !part.is_complex())
      in_lists[{part.device().type(), part.device().index(), part.scalar_type()}].push_back(part);
    else
      norms.push_back(norm_of(part));
  }
  if (!in_kernels.empty()) norms.push_back(fused::piecewise_norms(in_kernels, p_));
  for (const auto& [kind, list] : in_lists) {
    for (const auto& norm : at::_foreach_norm(list, p_, at::kDouble)) norms.push_back(norm.to(device_));
  }
  for (auto& norm : norms) norm = norm.reshape({-1});
  return norms;
}

at::Tensor NormOverRanks::by_rank() const {
  const at::NoGradGuard no_grad;
  const auto options = at::dtype(at::kDouble).device(device_);
  const auto norms = this->norms();
  const auto all = norms.empty() ? at::empty({0}, options) : norms.size() == 1 ? norms[0] : at::cat(norms);
  if (has_kernels_) return fused::norm_by_rank(all, p_, ranks_, self_);
  auto by_rank = at::zeros({ranks_}, options);
  if (!norms.empty()) by_rank.select(0, self_).copy_(norm_of(all));
  return by_rank;
}

at::Tensor NormOverRanks::complete(const at::Tensor& summed) const { return norm_of(summed); }

fused::ClippedNorm NormOverRanks::clip(const at::Tensor& summed, double max_norm, c10::ScalarType type) const {
  if (has_kernels_) return fused::clip_by_norm(summed, p_, max_norm, type);
  const auto norm = complete(summed);
  return {norm, norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0), norm.to(type)};
}

}  // namespace autopar::gradients
