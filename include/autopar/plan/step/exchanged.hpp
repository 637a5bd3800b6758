#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <autopar/plan/step/objective.hpp>
#include <autopar/plan/step/staging_costs.hpp>

namespace autopar {

/// What all ranks together send in one step.
struct Exchanged {
  Bytes bytes{};           ///< a multiple of a KiB
  std::int64_t calls = 0;  ///< messages, and for each member of a group gathers and sums into shards; a sum is both
  friend auto operator<=>(const Exchanged&, const Exchanged&) = default;
};

namespace detail {

/// Seconds of everything in a step that costs predict, of all ranks together.
[[nodiscard]] inline double rank_seconds(const Workload& run, const StepObjective& objective, const Staging& staging,
                                         const SizedPipeline& sized, const MemoryOptimizations& optimizations) {
  const StagingCosts costs(run, staging, sized, optimizations);
  const auto slice = largest_slices(staging, objective.slices());
  double seconds = 0;
  for (std::size_t s = 0; s < sized.pipeline.stages.size(); ++s) {
    const StageId stage = StageId::of(s);
    const Seconds computes = costs.forward(stage, slice[s]) + costs.backward(stage, slice[s]);
    const Seconds update = costs.update(stage, objective.constraints().optimizer_state_factor);
    const auto ranks = static_cast<double>(sized.pipeline.stages[s].ranks().size());
    seconds += ranks * (computes * staging.microbatches + update).value();
  }
  for (std::size_t g = 0; g < sized.pipeline.groups.size(); ++g) {
    const auto& group = sized.pipeline.groups[g];
    for (int bucket = 0; bucket < group.buckets; ++bucket) {
      const Action sum{.kind = ActionKind::kAllReduce, .group = static_cast<int>(g), .bucket = bucket};
      seconds += static_cast<double>(group.ranks.size()) * costs.reduce(sum).value();
    }
  }
  return seconds;
}

}  // namespace detail

/// Read off the costs that predict the step: links that take a second a byte, or a second a call, less links that take
/// nothing.
/// @param terms  a prediction of the staging
/// @cost O(nodes + parameters), three times
[[nodiscard]] inline Exchanged exchanged_in(const StepObjective& objective, const Staging& staging,
                                            const StepTerms& terms) {
  const Workload& whole = objective.whole();
  const MemoryOptimizations& optimizations = terms.optimizations;
  Workload run = staging.tensor.empty() ? whole : in_shards(whole, staging, optimizations.sequence);
  run.contention = [](std::span<const Rank>) { return kOneAfterTheOther; };  // nothing hides
  const SizedPipeline sized = objective.pipeline(staging, terms.meshes);
  const auto with_sums = [&](const auto& sum) {
    run.all_reduce = [&](Bytes bytes, std::span<const Rank> ranks) {
      return bytes <= Bytes(0) || ranks.size() < 2 ? Seconds{} : Seconds(sum(bytes, static_cast<double>(ranks.size())));
    };
    return detail::rank_seconds(run, objective, staging, sized, optimizations);
  };
  const double unit = static_cast<double>(sized.buckets.unit_size(optimizations.zero, largest_trained(run)).value());
  const double nothing = with_sums([](Bytes, double) { return 0.0; });
  double bytes = with_sums([](Bytes sum, double ranks) {
                   return 2 * (ranks - 1) / ranks * static_cast<double>(sum.value());  // in a ring
                 }) -
                 nothing;
  double calls =
      with_sums([&](Bytes sum, double) { return 2 * std::ceil(static_cast<double>(sum.value()) / unit); }) - nothing;
  for (std::size_t c = 0; c < sized.channels.size(); ++c) {
    const Channel& channel = sized.pipeline.channels[c];
    if (!channel.from.valid() || !channel.to.valid()) continue;
    const std::int64_t samples = objective.constraints().batch / staging.microbatches;
    const Bytes both =
        detail::bytes_at(sized.channels[c].value, samples) + detail::bytes_at(sized.channels[c].gradient, samples);
    bytes += static_cast<double>(both.value()) * staging.microbatches;
    calls += (channel.differentiable ? 2.0 : 1.0) * staging.microbatches;
  }
  constexpr std::int64_t kKibi = 1024;  // sums of the same bytes in another order differ in the last digits
  return {Bytes(std::llround(bytes / kKibi) * kKibi), std::llround(calls)};
}

}  // namespace autopar
