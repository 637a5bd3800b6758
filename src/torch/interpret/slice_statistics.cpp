#include "torch/interpret/slice_statistics.hpp"

#include <algorithm>

#include <ATen/ops/zeros.h>

#include <autopar/core/assert.hpp>

#include "capture/ir/tensor_form.hpp"
#include "torch/interpret/arguments.hpp"

namespace autopar::interpret {

namespace {

/// Elements that a statistic takes in the shared memory, aligned for any kernel.
std::int64_t places_of(std::int64_t channels) {
  constexpr std::int64_t kAligned = 64;
  return (channels + kAligned - 1) / kAligned * kAligned;
}

}  // namespace

SliceStatistics::SliceStatistics(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                 const std::vector<OpId>& ops) {
  for (const auto op : ops) {
    const auto norm = plan.handling(op).batch_norm;
    const auto running = norm < 0 ? ValueId::none() : plan.batch_norms[static_cast<std::size_t>(norm)].running_mean;
    if (running.valid()) places_ += 2 * places_of(ir::sizes_at(graph.value(running), 1).at(0));
  }
}

// Statistics of all norms of a run share one allocation. A separate fill for each took the host as long as an operator.
at::Tensor SliceStatistics::zeros_for(const at::Tensor& statistic) {
  const auto places = places_of(statistic.numel());
  const bool fits =
      zeros_.defined() && zeros_.scalar_type() == statistic.scalar_type() && given_ + places <= zeros_.numel();
  if (!fits) {
    zeros_ = at::zeros({std::max(places, places_)}, statistic.options());
    given_ = 0;
  }
  const auto part = zeros_.narrow(0, given_, statistic.numel());
  given_ += places;
  return ir::with_own_version(part);
}

void SliceStatistics::call(replay::ReplayCall& call, const BatchNormPlan& norm, NormSample& sample) {
  if (!norm.running_mean.valid()) {
    call.call_original();
    return;
  }
  const auto mean_at = argument_named(call.node, "running_mean"), var_at = argument_named(call.node, "running_var");
  const auto momentum_at = argument_named(call.node, "momentum");
  AUTOPAR_ASSERT(mean_at >= 0 && var_at >= 0 && momentum_at >= 0, "a batch norm has no running statistics to replace");
  const auto mean = zeros_for(argument(call, mean_at).toTensor());
  const auto variance = zeros_for(mean);
  argument(call, mean_at) = mean;
  argument(call, var_at) = variance;
  argument(call, momentum_at) = 1.0;
  call.call_original();
  sample = {.mean = mean,
            .variance = variance,
            .count = static_cast<double>(norm.samples.at(call.sizes.local)),
            .by_sample = norm.by_sample,
            .as_given = true};
}

}  // namespace autopar::interpret
