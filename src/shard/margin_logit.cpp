#include "shard/margin_logit.hpp"

#include <cmath>
#include <limits>
#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>

#include <autopar/core/error.hpp>

namespace autopar::detail {

namespace {

/// sin θ, from 0 so far away that its inverse is finite.
at::Tensor sine_of(const at::Tensor& cosine) {
  const double least = cosine.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                           : std::numeric_limits<float>::epsilon();
  return (1 - cosine.square()).clamp_min(least).sqrt();
}

/// Where θ + arc < π.
at::Tensor falls(const at::Tensor& cosine, const Margin& margin) { return cosine.gt(-std::cos(margin.arc)); }

}  // namespace

void require_sound(const Margin& margin) {
  expect(margin.scale > 0, "a margin's scale must be above 0");
  expect(margin.arc >= 0 && margin.arc < std::numbers::pi, "a margin's arc must be in [0, pi)");
  expect(margin.cosine >= 0, "a margin's cosine must not be negative");
}

at::Tensor margin_logit(const at::Tensor& cosine, const Margin& margin) {
  auto moved = cosine;
  if (margin.arc > 0) {
    const auto turned = cosine * std::cos(margin.arc) - sine_of(cosine) * std::sin(margin.arc);
    moved = at::where(falls(cosine, margin), turned, cosine - margin.arc * std::sin(margin.arc));
  }
  return (moved - margin.cosine) * margin.scale;
}

at::Tensor margin_slope(const at::Tensor& cosine, const Margin& margin) {
  if (margin.arc == 0) return at::full_like(cosine, margin.scale);
  const auto turned = std::cos(margin.arc) + cosine / sine_of(cosine) * std::sin(margin.arc);
  return at::where(falls(cosine, margin), turned, 1) * margin.scale;
}

}  // namespace autopar::detail
