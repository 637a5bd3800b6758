#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include <autopar/plan/least_memory.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/segments.hpp>
#include <autopar/plan/text.hpp>

namespace autopar {

/// Changes of a request that does not fit, each of them enough by itself. Found by trying, not by rule of thumb.
struct Remedies {
  std::optional<Bytes> device_memory;  ///< least Options::device_memory that fits
  std::optional<int>
      world;  ///< ranks on a larger cluster of the same devices; the least if it is near, else one that fits
  std::optional<int> stages;                     ///< least number of stages, if stages were fixed
  std::optional<int> microbatches;               ///< least number of micro-batches, if more than allowed help
  std::optional<double> optimizer_state_factor;  ///< largest factor that fits
  bool recompute = false;                        ///< running forwards again is enough, but was ruled out
  std::optional<int> zero;                       ///< least level that fits, if a lower one was fixed
  bool offload = false;                          ///< offloading the optimizer is enough, but was ruled out
};

/// The least Options::device_memory of which `peak` bytes may be used.
[[nodiscard]] inline Bytes memory_for(Bytes peak, double memory_margin) {
  const double share = 1 - memory_margin;
  auto whole = static_cast<std::int64_t>(std::ceil(static_cast<double>(peak.value()) / share));
  while (std::floor(static_cast<double>(whole) * share) < static_cast<double>(peak.value()))
    ++whole;
  return Bytes(whole);
}

namespace detail {

class RemedySearch {
 public:
  RemedySearch(const Workload& work, const Cluster& cluster, const PlanRequest& request, const Constraints& constraints)
      : work_(work), cluster_(cluster), request_(request), constraints_(constraints) {}

  /// @param least  peak under the request as it is
  [[nodiscard]] Remedies find(Bytes least) const {
    Remedies out;
    out.device_memory = memory_for(least, request_.options.memory_margin);
    if (constraints_.replicas.empty()) {
      out.world = least_world();
      if (constraints_.stages > 0) out.stages = least_stages();
    }
    out.microbatches = least_microbatches();
    out.optimizer_state_factor = largest_factor();
    out.recompute = recomputing_fits();
    out.zero = least_zero();
    out.offload = offloading_fits();
    return out;
  }

 private:
  [[nodiscard]] bool fits(const Constraints& constraints, const Cluster& cluster) const {
    const StepObjective objective(work_, cluster, constraints);
    const auto least = least_memory(objective);
    return least && least->fits(constraints);
  }
  [[nodiscard]] bool fits(const Constraints& constraints) const { return fits(constraints, cluster_); }

  [[nodiscard]] std::optional<int> least_world() const {
    const auto fits_on = [&](int world) {
      Cluster larger = cluster_;
      larger.devices = std::max(larger.devices, world);
      if (!larger.levels.empty()) larger.levels.back().span = std::max(larger.levels.back().span, world);
      Constraints more = constraints_;
      more.world = world;
      return fits(more, larger);
    };
    // Shares are rounded, so that one rank more may need more memory: near by, every number is tried.
    const int near = std::min(2 * constraints_.world, constraints_.world + 16);
    for (int world = constraints_.world + 1; world <= near; ++world) {
      if (fits_on(world)) return world;
    }
    for (int world = 2 * near; world <= std::min(16 * constraints_.world, 4096); world *= 2) {
      if (fits_on(world)) return world;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<int> least_stages() const {
    Constraints more = constraints_;
    const int most = std::min(constraints_.world, static_cast<int>(work_.graph.node_count()));
    for (more.stages = constraints_.stages + 1; more.stages <= most; ++more.stages) {
      if (fits(more)) return more.stages;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<int> least_microbatches() const {
    for (const NodeId node : work_.graph.nodes()) {
      if (work_.graph[node].whole_batch || work_.graph[node].totals > Bytes(0)) return std::nullopt;
    }
    const int used = constraints_.microbatches.back();
    const auto most = static_cast<int>(std::min<std::int64_t>(most_microbatches(work_, constraints_), 1 << 16));
    for (const int microbatches : microbatch_candidates(1, most, constraints_.largest_local_batch())) {
      if (microbatches <= used) continue;
      Constraints more = constraints_;
      more.microbatches = {microbatches};
      if (fits(more)) return microbatches;
    }
    return std::nullopt;
  }

  [[nodiscard]] bool recomputing_fits() const {
    if (!request_.runtime.recompute || constraints_.recompute != Recompute::kNever) return false;
    Constraints more = constraints_;
    more.recompute = Recompute::kToFit;
    Workload in_segments = work_;
    in_segments.segment_of =
        recompute_segments(work_, more, std::max<std::int64_t>(1, constraints_.batch / constraints_.world));
    const StepObjective objective(in_segments, cluster_, more);
    const auto least = least_memory(objective);
    return least && least->fits(more);
  }

  [[nodiscard]] std::optional<int> least_zero() const {
    for (int level = constraints_.zero_levels.back() + 1; level <= request_.runtime.max_zero; ++level) {
      Constraints more = constraints_;
      more.zero_levels = {level};
      if (fits(more)) return level;
    }
    return std::nullopt;
  }

  [[nodiscard]] bool offloading_fits() const {
    if (!request_.runtime.offload || !work_.offloaded_update) return false;
    if (constraints_.offloads.back() != Offload::kNone) return false;
    Constraints more = constraints_;
    more.offloads = {Offload::kOptimizer};
    return fits(more);
  }

  /// In steps of 1/16, which a user can type.
  [[nodiscard]] std::optional<double> largest_factor() const {
    const auto fits_with = [&](int sixteenths) {
      Constraints less = constraints_;
      less.optimizer_state_factor = sixteenths / 16.0;
      return fits(less);
    };
    int high = static_cast<int>(std::ceil(constraints_.optimizer_state_factor * 16)), low = 0;
    if (high == 0 || !fits_with(0)) return std::nullopt;
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (fits_with(middle) ? low : high) = middle;
    }
    return low / 16.0;
  }

  const Workload& work_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  const Constraints& constraints_;
};

[[nodiscard]] inline std::string number(double value) {
  return formatted("%g", value);
}

}  // namespace detail

/// Changes that make a request fit, which as it is needs at least `least` bytes on some rank.
[[nodiscard]] inline Remedies find_remedies(const Workload& work, const Cluster& cluster, const PlanRequest& request,
                                            const Constraints& constraints, Bytes least) {
  return detail::RemedySearch(work, cluster, request, constraints).find(least);
}

/// "any of these fits: device_memory = 45097156608 (42.0 GiB, 2.0 GiB more); 10 ranks instead of 8; …"
[[nodiscard]] inline std::string describe(const Remedies& remedies, const Cluster& cluster, const PlanRequest& request,
                                          const Constraints& constraints) {
  std::vector<std::string> ways;
  if (remedies.device_memory) {
    const Bytes now = request.options.device_memory > Bytes(0) ? request.options.device_memory : cluster.device.memory;
    ways.push_back("device_memory = " + std::to_string(remedies.device_memory->value()) + " (" +
                   readable(*remedies.device_memory) + ", " + readable(*remedies.device_memory - now) + " more)");
  }
  if (remedies.stages) {
    ways.push_back("stages = " + std::to_string(*remedies.stages) + " instead of " +
                   std::to_string(constraints.stages));
  }
  if (remedies.world) {
    ways.push_back(std::to_string(*remedies.world) + " ranks instead of " + std::to_string(constraints.world));
  }
  if (remedies.microbatches) {
    ways.push_back("microbatches = " + std::to_string(*remedies.microbatches) + " instead of " +
                   std::to_string(constraints.microbatches.back()));
  }
  if (remedies.optimizer_state_factor) {
    ways.push_back("optimizer_state_factor = " + detail::number(*remedies.optimizer_state_factor) + " instead of " +
                   detail::number(constraints.optimizer_state_factor) + " (an optimizer with less state)");
  }
  if (remedies.recompute) ways.push_back("recompute = auto instead of none");
  if (remedies.zero) {
    ways.push_back("zero = " + std::to_string(*remedies.zero) + " instead of " +
                   std::to_string(constraints.zero_levels.back()));
  }
  if (remedies.offload) ways.push_back("offload = optimizer instead of " + request.options.offload);
  std::string text = ways.size() == 1 ? "this fits: " : "any one of these fits: ";
  for (std::size_t i = 0; i < ways.size(); ++i)
    text += (i > 0 ? "; " : "") + ways[i];
  return text;
}

}  // namespace autopar
