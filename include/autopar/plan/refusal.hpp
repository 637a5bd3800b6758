#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/plan/coarsened.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/least_memory.hpp>
#include <autopar/plan/remedy.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/text.hpp>

namespace autopar::detail {

/// What is left where no staging that was searched fits: the one that needs least memory, or an error that says why
/// nothing fits and what would.
class Refusal {
 public:
  /// @pre the arguments outlive it
  Refusal(const Workload& work, const Cluster& cluster, const PlanRequest& request, const Constraints& constraints)
      : work_(work), cluster_(cluster), request_(request), constraints_(constraints) {}

  /// Offers the staging that needs least memory, if that fits.
  /// @throws InfeasiblePlan, CaptureError otherwise: what would fit, or which operator allows no staging
  void fit_least(const Coarsened& coarse, SearchResult& found) const {
    auto least = least_memory(coarse.objective);
    if (!least) {
      refuse_all(found.candidates.ranked());
      refuse_no_staging();
    }
    const bool has_no_law = least->staging.schedule == ScheduleKind::kSynthesised || wants_chunks(least->staging.schedule);
    if (least->fits(coarse.constraints) || has_no_law) {
      Candidate candidate{least->staging, coarse.objective(least->staging)};
      least->peak = std::max(least->peak, StepObjective::peak(candidate.terms));
      found.candidates.offer(std::move(candidate));
      if (found.candidates.any_fits()) return;
    }
    if (!least->host_holds(coarse.constraints)) refuse_host(least->stage, least->host);
    least->peak += coarse.rounding(work_);
    const auto remedies = find_remedies(coarse.work, cluster_, request_, coarse.constraints, least->peak);
    throw InfeasiblePlan(
        "no plan fits " + std::to_string(constraints_.world) + " x " + readable(constraints_.memory) +
            " (memory_margin taken off): the plan that needs least, " +
            describe(least->staging.replicas, least->staging.microbatches, least->staging.schedule) + ", needs " +
            readable(least->peak) + " on each rank of stage " + std::to_string(least->stage.value()) + ", " +
            readable(least->peak - constraints_.memory) + " more than there is" + too_large_node(),
        least->stage, least->peak, constraints_.memory, describe(remedies, cluster_, request_, constraints_));
  }

 private:
  /// Hosts do not hold what must be offloaded.
  [[noreturn]] void refuse_host(StageId stage, Bytes needed) const {
    const Bytes there = *constraints_.host_memory;
    const bool shared = constraints_.zero_levels.back() > 0;
    throw InfeasiblePlan("offload = optimizer puts " + readable(needed) + " of a rank into its host's memory, whose part of " +
                             "each rank is " + readable(there) + " (memory_margin taken off)",
                         stage, needed, there,
                         std::string("offload = auto") + (shared ? "" : ", or zero = 1, which shares it among replicas,") +
                             " may fit; so do hosts with " + readable(needed - there) + " more memory a rank");
  }

  /// No plain schedule is allowed, and what was tried under the others is too large.
  void refuse_all(const std::vector<Candidate>& tried) const {
    if (tried.empty()) return;
    const auto peak = [](const Candidate& candidate) { return StepObjective::peak(candidate.terms); };
    const Candidate& least = *std::min_element(
        tried.begin(), tried.end(), [&](const Candidate& a, const Candidate& b) { return peak(a) < peak(b); });
    if (peak(least) <= constraints_.memory) refuse_host(StageId(0), StepObjective::host_peak(least.terms));
    Remedies remedies;
    remedies.device_memory = memory_for(peak(least), request_.options.memory_margin);
    throw InfeasiblePlan("no plan fits " + std::to_string(constraints_.world) + " x " + readable(constraints_.memory) +
                             " (memory_margin taken off): of those that were tried, the one that needs least, " +
                             describe(least.staging.replicas, least.staging.microbatches, least.staging.schedule) +
                             ", needs " + readable(peak(least)) + " on a rank",
                         StageId(0), peak(least), constraints_.memory,
                         describe(remedies, cluster_, request_, constraints_) +
                             "; schedule = 1f1b or auto may need less");
  }

  /// The node that needs most by itself, if no rank can hold it even with one sample; else empty.
  [[nodiscard]] std::string too_large_node() const {
    const auto& costs = work_.node_costs(1);
    Bytes most{};
    NodeId largest = NodeId::none();
    for (const NodeId node : work_.graph.nodes()) {
      Bytes own = work_.graph[node].resident + costs[node.index()].saved + costs[node.index()].workspace;
      for (const ParameterId parameter : work_.graph[node].parameters)
        own += Bytes(least_held(work_.parameters[parameter.index()], constraints_, 1).at(constraints_.world));
      if (own <= most) continue;
      most = own;
      largest = node;
    }
    if (most <= constraints_.memory) return "";
    const WorkNode& unit = work_.graph[largest];
    return "; no cut helps, for " + unit.name + (unit.path.empty() ? "" : " (near " + unit.path + ")") +
           " alone needs " + readable(most) + " with one sample";
  }

  [[noreturn]] void refuse_no_staging() const {
    for (const NodeId node : work_.graph.nodes()) {
      const WorkNode& unit = work_.graph[node];
      if (!unit.whole_batch) continue;
      throw CaptureError(unit.name, unit.path,
                         "mixes the samples of a batch, so its stage must have one replica, which stages = " +
                             std::to_string(constraints_.stages) + " with replicas = " +
                             listed(request_.options.replicas) +
                             " do not allow; leave them to the planner");
    }
    throw InfeasiblePlan("no division into stages meets stages = " + std::to_string(constraints_.stages) +
                         " and replicas = " + listed(request_.options.replicas) +
                         (request_.options.schedule == "auto" ? "" : " under schedule = " + request_.options.schedule) +
                         "; leave them to the planner");
  }

  const Workload& work_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  const Constraints& constraints_;
};

}  // namespace autopar::detail
