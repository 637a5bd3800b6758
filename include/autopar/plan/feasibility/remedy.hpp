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

/// Changes to a request that does not fit; each of them is enough alone.
struct Remedies {
  std::vector<std::string> ways;       ///< as texts
  std::optional<Bytes> device_memory;  ///< least Options::device_memory that fits
  std::optional<detail::Fit> fit;      ///< a plan for `device_memory`
  bool least = true;                   ///< false: smaller changes may be enough, but a proof would take too long

  /// "any one of these fits: device_memory = 45097156608 (42.0 GiB, 2.0 GiB more); 10 ranks instead of 8; …"
  [[nodiscard]] std::string text() const {
    if (ways.empty()) return "no single change that was tried fits";
    std::string out = ways.size() == 1 ? "this " : "any one of these ";
    out += least ? "fits: " : "is enough, less may do: ";
    for (std::size_t i = 0; i < ways.size(); ++i) out += (i > 0 ? "; " : "") + ways[i];
    return out;
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

/// Searches for the changes that a request needs, by asking the planner. For a number, the next smaller change is
/// refused, too.
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
    const auto host = more_host_memory(host_peak), world = more_ranks(), stages = more_stages(),
               microbatches = more_microbatches(), factor = less_optimizer_state(), zero = other_zero(),
               recompute = recompute_to_fit(), schedule = other_schedule(), offload = other_offload();
    if (out.device_memory) {
      const Bytes more = *out.device_memory - device_memory(request_.options, cluster_);
      out.ways.push_back("device_memory = " + std::to_string(out.device_memory->value()) + " (" +
                         readable(*out.device_memory) + ", " + readable(more) + " more)");
    }
    for (const auto* way : {&host, &stages, &world, &microbatches, &factor, &recompute, &zero, &offload, &schedule}) {
      if (*way) out.ways.push_back(**way);
    }
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

  /// Each of the following: the smallest such change that fits, as a text; nothing if none does, or if it is no change.
  using Way = std::optional<std::string>;

  /// The least part of the host's memory for a device, if it may be used.
  [[nodiscard]] Way more_host_memory(Bytes peak) {
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
    const auto least = least_bytes(
        cluster_.host->memory, guess, fit_at, [&](const Fit&) { return kPlenty; }, fit);
    if (!least) return std::nullopt;
    return "host memory of " + std::to_string(least->value()) + " bytes a rank (" +
           readable(*least - cluster_.host->memory) + " more)";
  }

  [[nodiscard]] std::pair<PlanRequest, Cluster> with_ranks(int world) const {
    std::pair out(request_, cluster_);
    out.first.world = world;
    out.second.devices = std::max(cluster_.devices, world);
    if (!cluster_.levels.empty()) out.second.levels.back().span = std::max(cluster_.levels.back().span, world);
    return out;
  }

  [[nodiscard]] static std::string instead(const std::string& value, const std::string& now) {
    return value + " instead of " + now;
  }

  /// Ranks of a larger cluster of the same devices: the least if it is near, otherwise a number that fits.
  [[nodiscard]] Way more_ranks() {
    const auto way = [&](int world) {
      return instead(std::to_string(world) + " ranks", std::to_string(constraints_.world));
    };
    // Slices are rounded, so one rank more may need more memory: every nearby number is tried.
    const int near = std::min(2 * constraints_.world, constraints_.world + 16);
    for (int world = constraints_.world + 1; world <= near; ++world) {
      if (hopeless(static_cast<double>(world) / constraints_.world)) continue;
      const auto [more, larger] = with_ranks(world);
      if (fits_for_sure(more, larger)) return way(world);
    }
    for (int world = 2 * near; world <= std::min(16 * constraints_.world, 4096); world *= 2) {
      const auto [more, larger] = with_ranks(world);
      if (quick_(more, larger).fit && exact_(more, larger).fit) return way(world);
    }
    return std::nullopt;
  }

  [[nodiscard]] Way more_stages() {
    if (constraints_.stages == 0 || !constraints_.replicas.empty()) return std::nullopt;
    PlanRequest more = request_;
    int& stages = more.options.stages;
    const int most = std::min(constraints_.world, static_cast<int>(work_.graph.node_count()));
    for (stages = constraints_.stages + 1; stages <= most; ++stages) {
      if (fits_for_sure(more, cluster_))
        return instead("stages = " + std::to_string(stages), std::to_string(constraints_.stages));
    }
    return std::nullopt;
  }

  /// More micro-batches than allowed.
  [[nodiscard]] Way more_microbatches() {
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
      if (!hopeless(static_cast<double>(microbatches) / used) && fits_with(microbatches))
        return instead("microbatches = " + std::to_string(last_of(microbatches, low, fits_with)), std::to_string(used));
      low = microbatches;
    }
    return std::nullopt;
  }

  /// The largest factor that fits, in steps of 1/16, which a user can type.
  [[nodiscard]] Way less_optimizer_state() {
    const auto fits_with = [&](int sixteenths) {
      return fits([&](Options& options) { options.optimizer_state_factor = sixteenths / 16.0; });
    };
    const int now = static_cast<int>(std::ceil(constraints_.optimizer_state_factor * 16));
    if (now == 0 || !fits_with(0)) return std::nullopt;
    return instead("optimizer_state_factor = " + formatted("%g", last_of(0, now, fits_with) / 16.0),
                   formatted("%g", constraints_.optimizer_state_factor) + " (an optimizer with less state)");
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
  [[nodiscard]] Way other_zero() {
    const int now = request_.options.zero;
    for (int level = 0; now >= 0 && level <= request_.runtime.max_zero; ++level) {
      if (level != now && fits([&](Options& options) { options.zero = level; }))
        return instead("zero = " + std::to_string(level), std::to_string(now));
    }
    return std::nullopt;
  }

  [[nodiscard]] Way recompute_to_fit() {
    const RecomputeOption& now = request_.options.recompute;
    const bool may = now != Recompute::kToFit && request_.runtime.recompute;
    if (!may || !fits([](Options& options) { options.recompute = Recompute::kToFit; })) return std::nullopt;
    return instead("recompute = auto", option_text(now));
  }

  [[nodiscard]] Way other_schedule() {
    const auto& now = request_.options.schedule;
    if (!now || !fits([](Options& options) { options.schedule.reset(); })) return std::nullopt;
    return instead("schedule = auto", option_text(now));
  }

  [[nodiscard]] Way other_offload() {
    const std::optional<Offload> now = request_.options.offload;
    if (!now) return std::nullopt;  // already tried if there is a host
    const bool is_none = now == Offload::kNone;
    if (is_none && (!request_.runtime.offload || !work_.offloaded_update)) return std::nullopt;
    const Offload other = is_none ? Offload::kOptimizer : Offload::kNone;
    if (!fits([&](Options& options) { options.offload = other; })) return std::nullopt;
    return instead("offload = " + name_of(other), option_text(now));
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

}  // namespace detail

}  // namespace autopar
