#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/plan/feasibility/attempt.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/model/segments.hpp>
#include <autopar/plan/option_text.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/search/least_cuts.hpp>
#include <autopar/plan/search_budget.hpp>
#include <autopar/plan/text.hpp>

namespace autopar {

/// Changes to a request that does not fit; each of them is enough alone. They are found by asking the planner: for a
/// number, the next smaller change is refused, too.
struct Remedies {
  std::optional<Bytes> device_memory;  ///< least Options::device_memory that fits
  std::optional<Bytes> host_memory;    ///< least part of the host's memory for a device that fits, if it may be used
  /// Ranks of a larger cluster of the same devices: the least if it is near, otherwise a number that fits.
  std::optional<int> world;
  std::optional<int> stages;                     ///< least number of stages, if stages were fixed
  std::optional<int> microbatches;               ///< least number of micro-batches, if more than allowed help
  std::optional<double> optimizer_state_factor;  ///< largest factor that fits, in sixteenths
  std::optional<int> zero;                       ///< least level that fits, if another one was fixed
  bool recompute = false;                        ///< leaving recomputation to the planner is enough
  bool schedule = false;                         ///< leaving the schedule to the planner is enough
  std::optional<Offload> offload;                ///< another place for the optimizer is enough
  std::optional<detail::Fit> fit;                ///< a plan for `device_memory`
  bool least = true;                             ///< false: smaller changes may be enough, but a proof would take too
                                                 ///< long

  [[nodiscard]] bool any() const {
    return device_memory || host_memory || world || stages || microbatches || optimizer_state_factor || zero ||
           recompute || schedule || offload;
  }
};

/// The least Options::device_memory of which `peak` bytes may be used.
[[nodiscard]] inline Bytes memory_for(Bytes peak, double memory_margin) {
  const double share = 1 - memory_margin;
  auto whole = static_cast<std::int64_t>(std::ceil(static_cast<double>(peak.value()) / share));
  while (std::floor(static_cast<double>(whole) * share) < static_cast<double>(peak.value())) ++whole;
  return Bytes(whole);
}

namespace detail {

/// Searches for the changes that a request needs.
class RemedySearch {
 public:
  /// @param exact  the planner's own answers
  /// @param quick  answers that are right if something fits and the numbers of ranks and stages are the same
  /// @param slow   whether the planner's own answers take too long to ask for each change
  RemedySearch(const Workload& work, const Cluster& cluster, const PlanRequest& request, const Constraints& constraints,
               Trials exact, Trials quick, bool slow)
      : work_(work),
        cluster_(cluster),
        request_(request),
        constraints_(constraints),
        exact_(std::move(exact)),
        quick_(std::move(quick)),
        budget_(slow ? 0 : constraints.budget.remedy_steps) {}

  /// @param peak       peak memory of some plan; 0 = none is known
  /// @param host_peak  likewise in host memory
  [[nodiscard]] Remedies find(Bytes peak, Bytes host_peak) {
    Remedies out;
    excess_ = static_cast<double>(peak.value()) / std::max(1.0, static_cast<double>(constraints_.memory.value()));
    out.device_memory = least_device_memory(peak, out.fit);
    out.host_memory = least_host_memory(host_peak);
    out.world = least_world();
    if (constraints_.stages > 0 && constraints_.replicas.empty()) out.stages = least_stages();
    out.microbatches = least_microbatches();
    out.optimizer_state_factor = largest_factor();
    out.zero = least_zero();
    out.recompute = request_.options.recompute != Recompute::kToFit && request_.runtime.recompute &&
                    fits([](Options& options) { options.recompute = Recompute::kToFit; });
    out.schedule = request_.options.schedule && fits([](Options& options) { options.schedule.reset(); });
    out.offload = other_offload();
    out.least = !shortened_;
    return out;
  }

 private:
  [[nodiscard]] std::optional<Fit> fit_of(const PlanRequest& request, const Cluster& cluster) {
    if (budget_ <= 0) {
      auto fit = quick_(request, cluster).fit;
      shortened_ = shortened_ || !fit;
      return fit;
    }
    Trial trial = exact_(request, cluster);
    budget_ -= trial.steps;
    shortened_ = shortened_ || !(trial.fit || trial.certain);
    return std::move(trial.fit);
  }
  template <class Change>
  [[nodiscard]] std::optional<Fit> fit_of(const Change& change) {
    PlanRequest changed = request_;
    change(changed.options);
    return fit_of(changed, cluster_);
  }
  template <class Change>
  [[nodiscard]] bool fits(const Change& change) {
    return fit_of(change).has_value();
  }
  /// If blocks of nodes may differ, a quick answer is not final.
  [[nodiscard]] bool fits_for_sure(const PlanRequest& request, const Cluster& cluster) {
    if (!fit_of(request, cluster)) return false;
    return budget_ > 0 || exact_(request, cluster).fit.has_value();
  }
  /// With so many times the ranks or micro-batches, a rank holds at least that fraction of what it holds now. A trial
  /// is not worth it if far more is missing.
  [[nodiscard]] bool hopeless(double times) const {
    constexpr double kUneven = 2;
    return excess_ > kUneven * times;
  }

  /// The number of bytes that is enough while one byte less is not.
  /// @param refused  a number that is not enough
  /// @param guess    a number that may be enough; 0 = none is known
  /// @param fit_at   what fits with so many bytes
  /// @param enough   the bytes that a fit takes
  /// @param fit      set to what fits with the answer
  template <class FitAt, class Enough>
  [[nodiscard]] std::optional<Bytes> least_bytes(Bytes refused, Bytes guess, const FitAt& fit_at, const Enough& enough,
                                                 std::optional<Fit>& fit) {
    constexpr std::int64_t kMost = std::int64_t{1} << 50;
    std::int64_t low = refused.value(), high = std::max(guess.value(), low + 1);
    while (!(fit = fit_at(Bytes(high)))) {
      if (high >= kMost) return std::nullopt;
      low = high;
      high *= 2;
    }
    std::int64_t promising = high;  // if a plan takes exactly this, one more trial shows that less is not enough
    while (high - low > 1 && budget_ > 0) {
      const bool below = promising - 1 > low && promising - 1 < high, at = promising > low && promising < high;
      const std::int64_t probe = below ? promising - 1 : at ? promising : low + (high - low) / 2;
      if (auto own = fit_at(Bytes(probe))) {
        high = probe;
        promising = enough(*own).value();
        fit = std::move(own);
      } else {
        low = probe;
      }
    }
    shortened_ = shortened_ || high - low > 1;
    return Bytes(high);
  }

  [[nodiscard]] std::optional<Bytes> least_device_memory(Bytes peak, std::optional<Fit>& fit) {
    const double margin = request_.options.memory_margin;
    return least_bytes(
        device_memory(request_.options, cluster_), peak > Bytes(0) ? memory_for(peak, margin) : Bytes(0),
        [&](Bytes bytes) { return fit_of([&](Options& options) { options.device_memory = bytes; }); },
        [&](const Fit& own) { return memory_for(own.peak, margin); }, fit);
  }

  [[nodiscard]] std::optional<Bytes> least_host_memory(Bytes peak) {
    if (!cluster_.host || constraints_.offloads.back() != Offload::kOptimizer) return std::nullopt;
    Cluster larger = cluster_;
    const auto fit_at = [&](Bytes bytes) {
      larger.host->memory = bytes;
      return fit_of(request_, larger);
    };
    constexpr Bytes kPlenty(std::int64_t{1} << 50);
    if (!fit_at(kPlenty)) return std::nullopt;
    std::optional<Fit> fit;
    const Bytes guess = peak > Bytes(0) ? memory_for(peak, request_.options.memory_margin) : Bytes(0);
    return least_bytes(
        cluster_.host->memory, guess, fit_at, [&](const Fit&) { return kPlenty; }, fit);
  }

  [[nodiscard]] std::pair<PlanRequest, Cluster> with_ranks(int world) const {
    std::pair out(request_, cluster_);
    out.first.world = world;
    out.second.devices = std::max(cluster_.devices, world);
    if (!cluster_.levels.empty()) out.second.levels.back().span = std::max(cluster_.levels.back().span, world);
    return out;
  }

  [[nodiscard]] std::optional<int> least_world() {
    // Slices are rounded, so one rank more may need more memory: every nearby number is tried.
    const int near = std::min(2 * constraints_.world, constraints_.world + 16);
    for (int world = constraints_.world + 1; world <= near; ++world) {
      if (hopeless(static_cast<double>(world) / constraints_.world)) continue;
      const auto [more, larger] = with_ranks(world);
      if (fits_for_sure(more, larger)) return world;
    }
    for (int world = 2 * near; world <= std::min(16 * constraints_.world, 4096); world *= 2) {
      const auto [more, larger] = with_ranks(world);
      if (quick_(more, larger).fit && exact_(more, larger).fit) return world;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<int> least_stages() {
    PlanRequest more = request_;
    const int most = std::min(constraints_.world, static_cast<int>(work_.graph.node_count()));
    for (more.options.stages = constraints_.stages + 1; more.options.stages <= most; ++more.options.stages) {
      if (fits_for_sure(more, cluster_)) return more.options.stages;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<int> least_microbatches() {
    for (const NodeId node : work_.graph.nodes()) {
      if (work_.graph[node].whole_batch || work_.graph[node].totals > Bytes(0)) return std::nullopt;
    }
    const auto fits_with = [&](int microbatches) {
      return fits([&](Options& options) {
        options.microbatches = microbatches;
        options.max_microbatches = std::max(options.max_microbatches, microbatches);
        options.min_microbatches = std::min(options.min_microbatches, microbatches);
      });
    };
    const int used = constraints_.microbatches.back();
    const auto most = static_cast<int>(std::min<std::int64_t>(most_microbatches(work_, constraints_), 1 << 16));
    int low = used;
    for (const int microbatches : microbatch_candidates(1, most, constraints_.largest_local_batch())) {
      if (microbatches <= used) continue;
      if (hopeless(static_cast<double>(microbatches) / used) || !fits_with(microbatches)) {
        low = microbatches;
        continue;
      }
      return last_of(microbatches, low, fits_with);
    }
    return std::nullopt;
  }

  /// The largest factor that fits, in steps of 1/16, which a user can type.
  [[nodiscard]] std::optional<double> largest_factor() {
    const auto fits_with = [&](int sixteenths) {
      return fits([&](Options& options) { options.optimizer_state_factor = sixteenths / 16.0; });
    };
    const int now = static_cast<int>(std::ceil(constraints_.optimizer_state_factor * 16));
    if (now == 0 || !fits_with(0)) return std::nullopt;
    return last_of(0, now, fits_with) / 16.0;
  }

  /// By bisection, the last number that is enough, next to one that is not.
  template <class Does>
  [[nodiscard]] static int last_of(int does, int not_yet, const Does& also) {
    while (std::abs(does - not_yet) > 1) {
      const int middle = not_yet + (does - not_yet) / 2;
      (also(middle) ? does : not_yet) = middle;
    }
    return does;
  }

  /// Unsharded units may take more than shards save, so a lower level may be enough, too.
  [[nodiscard]] std::optional<int> least_zero() {
    if (request_.options.zero < 0) return std::nullopt;
    for (int level = 0; level <= request_.runtime.max_zero; ++level) {
      if (level != request_.options.zero && fits([&](Options& options) { options.zero = level; })) return level;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Offload> other_offload() {
    const std::optional<Offload> now = request_.options.offload;
    if (!now) return std::nullopt;  // already tried if there is a host
    const bool is_none = now == Offload::kNone;
    if (is_none && (!request_.runtime.offload || !work_.offloaded_update)) return std::nullopt;
    const Offload other = is_none ? Offload::kOptimizer : Offload::kNone;
    if (!fits([&](Options& options) { options.offload = other; })) return std::nullopt;
    return other;
  }

  const Workload& work_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  const Constraints& constraints_;
  Trials exact_, quick_;
  std::int64_t budget_;
  double excess_ = 0;  ///< what some plan needs, as a multiple of what there is
  bool shortened_ = false;
};

[[nodiscard]] inline std::string number(double value) { return formatted("%g", value); }

}  // namespace detail

/// "any one of these fits: device_memory = 45097156608 (42.0 GiB, 2.0 GiB more); 10 ranks instead of 8; …"
[[nodiscard]] inline std::string describe(const Remedies& remedies, const Cluster& cluster, const PlanRequest& request,
                                          const Constraints& constraints) {
  if (!remedies.any()) return "no single change that was tried fits";
  std::vector<std::string> ways;
  if (remedies.device_memory) {
    const Bytes more = *remedies.device_memory - detail::device_memory(request.options, cluster);
    ways.push_back("device_memory = " + std::to_string(remedies.device_memory->value()) + " (" +
                   readable(*remedies.device_memory) + ", " + readable(more) + " more)");
  }
  if (remedies.host_memory) {
    ways.push_back("host memory of " + std::to_string(remedies.host_memory->value()) + " bytes a rank (" +
                   readable(*remedies.host_memory - cluster.host->memory) + " more)");
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
  if (remedies.recompute) ways.push_back("recompute = auto instead of " + option_text(request.options.recompute));
  if (remedies.zero) {
    ways.push_back("zero = " + std::to_string(*remedies.zero) + " instead of " + std::to_string(request.options.zero));
  }
  if (remedies.offload)
    ways.push_back("offload = " + name_of(*remedies.offload) + " instead of " + option_text(request.options.offload));
  if (remedies.schedule) ways.push_back("schedule = auto instead of " + option_text(request.options.schedule));
  std::string text = ways.size() == 1 ? "this " : "any one of these ";
  text += remedies.least ? "fits: " : "is enough, less may do: ";
  for (std::size_t i = 0; i < ways.size(); ++i) text += (i > 0 ? "; " : "") + ways[i];
  return text;
}

}  // namespace autopar
