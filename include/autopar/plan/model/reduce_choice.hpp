#pragma once

#include <autopar/core/cluster.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/plan/choices.hpp>
#include <autopar/plan/options.hpp>

namespace autopar {

/// The element type in which partial gradient sums are sent. `auto` is bf16 where all is computed in bf16 on devices
/// that have a host beside them, and so links that computation hides. Gradients were rounded to bf16 there once
/// already.
[[nodiscard]] inline ReduceDtype chosen_reduce_dtype(const Options& options, const Cluster& cluster) {
  if (options.reduce_dtype) return *options.reduce_dtype;
  const bool is_rounded_anyway = computes_in_bf16(options.precision);
  return is_rounded_anyway && cluster.host ? ReduceDtype::kBf16 : ReduceDtype::kFp32;
}

}  // namespace autopar
