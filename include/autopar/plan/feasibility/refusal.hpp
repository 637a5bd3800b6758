#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/feasibility/attempt.hpp>
#include <autopar/plan/feasibility/remedy.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/multilevel/coarsened.hpp>
#include <autopar/plan/option_text.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/search/least_memory.hpp>
#include <autopar/plan/text.hpp>

namespace autopar::detail {

/// Explains why a request has no plan, and which changes would give one.
class Refusal {
 public:
  /// @param exact  the planner's own answers
  /// @pre the arguments outlive it
  Refusal(const Workload& work, const Cluster& cluster, const PlanRequest& request, const Constraints& constraints,
          Trials exact)
      : work_(work), cluster_(cluster), request_(request), constraints_(constraints), exact_(std::move(exact)) {}

  /// @param tried  stagings that a search looked at
  /// @param least  the staging that needs the least memory, if known
  /// @throws CaptureError  naming the operator that allows no staging
  [[nodiscard]] Infeasible reason(const Coarsened& coarse, const std::vector<Candidate>& tried,
                                  const std::optional<LeastMemory>& least) const {
    if (!least && tried.empty()) return no_staging();
    const bool is_lawful = least && has_closed_form(least->staging.schedule);
    Bytes peak{}, host{};
    if (is_lawful) {
      peak = least->peak + coarse.rounding(work_);
      host = least->host + coarse.rounding(work_);
    } else if (!tried.empty()) {
      const auto of = [](const Candidate& candidate) { return StepObjective::peak(candidate.terms); };
      const Candidate& one = *std::min_element(tried.begin(), tried.end(),
                                               [&](const Candidate& a, const Candidate& b) { return of(a) < of(b); });
      peak = of(one) + coarse.rounding(work_);
      host = StepObjective::host_peak(one.terms) + coarse.rounding(work_);
    }
    const bool slow = work_.graph.node_count() >= constraints_.budget.many_nodes || (is_lawful && !least->proven);
    const Trials quick = [&](const PlanRequest& request, const Cluster& cluster) {
      return quick_trial(coarse, request, cluster);
    };
    const Remedies remedies =
        request_.remedies ? RemedySearch(work_, cluster_, request_, constraints_, exact_, quick, slow).find(peak, host)
                          : Remedies();
    const std::string ways = request_.remedies ? remedies.text() : "no remedy was looked for";
    const bool must_be_there = constraints_.host_memory && constraints_.offloads.front() == Offload::kOptimizer;
    if (must_be_there && host > *constraints_.host_memory)
      return host_too_small(least ? least->stage : StageId(0), host, ways);
    const bool is_known = request_.remedies || (is_lawful && least->proven);
    return {text(remedies, least, peak), remedies.fit ? remedies.fit->stage : StageId(0),
            is_known ? needed(remedies, peak) : Bytes(0), constraints_.memory, ways};
  }

 private:
  /// Bytes that a rank needs so that something fits.
  [[nodiscard]] Bytes needed(const Remedies& remedies, Bytes peak) const {
    if (!remedies.device_memory) return peak;
    Options options = request_.options;
    options.device_memory = *remedies.device_memory;
    return usable_memory(options, cluster_);
  }

  [[nodiscard]] std::string text(const Remedies& remedies, const std::optional<LeastMemory>& least, Bytes peak) const {
    std::string out = "no plan fits " + std::to_string(constraints_.world) + " x " + readable(constraints_.memory) +
                      " (memory_margin taken off)";
    if (!remedies.fit) return out + too_large_node();
    const Staging& staging = remedies.fit->staging;
    const Bytes bytes = needed(remedies, peak);
    out += ": the plan that needs " + std::string(remedies.least ? "least, " : "least of those that were tried, ") +
           describe(staging) + ", needs " + readable(bytes) + " on each rank of stage " +
           std::to_string(remedies.fit->stage.value()) + ", " + readable(bytes - constraints_.memory) +
           " more than there is";
    return least ? out + too_large_node() : out;
  }

  /// An answer along one topological order of the same blocks.
  [[nodiscard]] Trial quick_trial(const Coarsened& coarse, const PlanRequest& request, const Cluster& cluster) const {
    Trial trial;
    trial.certain = false;
    const Resolved resolved = try_resolve(request, work_, cluster);
    if (std::holds_alternative<Contradiction>(resolved)) return trial;
    auto constraints = std::get<Constraints>(resolved);
    constraints.memory -= coarse.rounding(work_);
    if (constraints.host_memory) *constraints.host_memory -= coarse.rounding(work_);
    const bool other = request.options.recompute != request_.options.recompute;
    const auto& schedules = constraints.schedules;
    const bool by_name = !constraints.recomputed_modules.empty();
    const bool lawless = std::none_of(schedules.begin(), schedules.end(), has_closed_form);
    if (lawless || (other && by_name)) return exact_(request, cluster);
    Workload in_segments = coarse.work;
    const std::int64_t samples = std::max<std::int64_t>(1, constraints.batch / constraints.world);
    if (other) in_segments.segment_of = recompute_segments(coarse.work, constraints, samples);
    const StepObjective objective(in_segments, cluster, constraints);
    const auto least = LeastMemoryCuts(objective).best();
    if (least && least->fits(constraints)) trial.fit = Fit{least->staging, least->peak, least->stage};
    return trial;
  }

  /// Hosts cannot hold what must be offloaded.
  [[nodiscard]] Infeasible host_too_small(StageId stage, Bytes needed, const std::string& ways) const {
    const Bytes there = *constraints_.host_memory;
    return {"offload = optimizer puts " + readable(needed) + " of a rank into its host's memory, whose " +
                "part of each rank is " + readable(there) + " (memory_margin taken off)",
            stage, needed, there, ways};
  }

  /// The node that needs most by itself, if no rank can hold it even with one sample; otherwise empty.
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

  [[nodiscard]] Infeasible no_staging() const {
    for (const NodeId node : work_.graph.nodes()) {
      const WorkNode& unit = work_.graph[node];
      if (!unit.whole_batch) continue;
      throw CaptureError(unit.name, unit.path,
                         "mixes the samples of a batch, so its stage must have one replica, which stages = " +
                             std::to_string(constraints_.stages) + " with replicas = " +
                             listed(request_.options.replicas) + " do not allow; leave them to the planner");
    }
    return {"no division into stages meets stages = " + std::to_string(constraints_.stages) +
            " and replicas = " + listed(request_.options.replicas) +
            (request_.options.schedule ? " under schedule = " + option_text(request_.options.schedule) : "") +
            "; leave them to the planner"};
  }

  const Workload& work_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  const Constraints& constraints_;
  Trials exact_;
};

}  // namespace autopar::detail
