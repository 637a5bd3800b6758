#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/concepts.hpp>
#include <autopar/plan/check/bound.hpp>
#include <autopar/plan/check/checked_costs.hpp>
#include <autopar/plan/check/checked_order.hpp>
#include <autopar/plan/check/compute_orders.hpp>
#include <autopar/plan/check/held.hpp>
#include <autopar/plan/check/shape.hpp>
#include <autopar/plan/check/stated_plan.hpp>
#include <autopar/plan/check/timeline.hpp>

namespace autopar {

/// The result of checking a plan.
struct PlanVerdict {
  std::vector<std::string> faults;  ///< statements of the plan that do not hold; empty = accepted
  Seconds step{};                   ///< of the plan as it is, computed again
  Seconds lower_bound{};            ///< derived again from its evidence; 0 = none
  double gap = 0;                   ///< step / lower_bound - 1
  bool claims_less = false;         ///< the plan's own bound is weaker than the derived one
  [[nodiscard]] bool accepted() const { return faults.empty(); }
};

namespace detail {

template <class M>
class PlanChecker {
 public:
  PlanChecker(const ModelProfile& model, const M& costs, const Cluster& cluster, const Plan& plan)
      : model_(model), costs_(costs), cluster_(cluster), plan_(plan) {}

  [[nodiscard]] PlanVerdict check() && {
    check_target();
    if (!verdict_.faults.empty()) return std::move(verdict_);
    const StatedPlan stated(model_, plan_);
    const CheckedCosts<M> costs(stated, costs_);
    check_size(stated);
    const auto orders = compute_orders(stated);
    if (!check_step(stated, orders, costs)) return std::move(verdict_);
    check_memory(stated, orders, costs);
    check_bound();
    return std::move(verdict_);
  }

 private:
  void fault(std::string what) { verdict_.faults.push_back(std::move(what)); }
  static std::string text(double value) {
    std::array<char, 40> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "%.10g", value);
    return buffer.data();
  }
  void demand_equal(const std::string& what, double stated, double found) {
    const double scale = std::max({std::abs(stated), std::abs(found), 1e-15});
    if (std::abs(stated - found) <= kRounding * scale) return;
    fault("the plan states " + what + " = " + text(stated) + ", but it is " + text(found));
  }

  void check_target() {
    if (plan_.model != model_.hash) {
      return fault("the plan was made for model " + hexadecimal(plan_.model) + ", the profile is of model " +
                   hexadecimal(model_.hash));
    }
    if (plan_.chunked_heads != model_.chunked_heads) {
      const auto of = [](bool chunked) { return chunked ? "piece by piece" : "whole"; };
      return fault(std::string("the plan makes the logits of class heads ") + of(plan_.chunked_heads) +
                   ", the profile's program makes them " + of(model_.chunked_heads));
    }
    if (plan_.layers_by_inputs != model_.layers_by_inputs) {
      const auto of = [](bool by_inputs) { return by_inputs ? "by inputs" : "by outputs or not at all"; };
      return fault(std::string("the plan cuts single linear layers ") + of(plan_.layers_by_inputs) +
                   ", the profile's regions cut them " + of(model_.layers_by_inputs));
    }
    if (plan_.world > cluster_.devices) {
      return fault("the plan is for " + std::to_string(plan_.world) + " ranks, the cluster '" + cluster_.name +
                   "' has " + std::to_string(cluster_.devices) + " devices");
    }
    if (plan_.device != cluster_.device.name) {
      return fault("the plan was made for devices '" + plan_.device + "', the cluster's are '" + cluster_.device.name +
                   "'");
    }
    if (plan_.device_memory > cluster_.device.memory) {
      fault("the plan counts on " + std::to_string(plan_.device_memory.value()) + " bytes a rank, the devices have " +
            std::to_string(cluster_.device.memory.value()));
    }
    if (plan_.offload != Offload::kNone) check_host();
    if (plan_.batch < 1 || plan_.batch > kMostSamples)
      fault("the plan is for " + std::to_string(plan_.batch) + " samples");
    if (const auto broken = fault_in_shape(model_, plan_); !broken.empty()) fault(broken);
  }

  void check_host() {
    if constexpr (!UpdatesOnHost<M>)
      fault("the plan offloads the optimizer, but these costs do not know what that takes");
    const Bytes there = cluster_.host ? cluster_.host->memory : Bytes(0);
    if (plan_.host_memory > there || (plan_.host_memory == Bytes(0)) != (there == Bytes(0))) {
      fault("the plan counts on " + std::to_string(plan_.host_memory.value()) +
            " bytes of host memory a rank, there are " + std::to_string(there.value()));
    }
  }

  /// @throws InvalidArgument if the plan is too large to be simulated
  void check_size(const StatedPlan& stated) const {
    double messages = 2.0 * plan_.world;  // and compute actions
    for (const StagePlan& stage : plan_.stages) messages += 3.0 * static_cast<double>(stage.mesh.ranks().size());
    for (const Crossing& crossing : stated.crossings()) {
      for (const int stage : {crossing.from, crossing.to}) {
        messages += stated.is_stage(stage)
                        ? static_cast<double>(plan_.stages[static_cast<std::size_t>(stage)].mesh.ranks().size())
                        : plan_.world;
      }
    }
    if (messages * plan_.microbatches > kMostMessages) {
      throw InvalidArgument("check: " + std::to_string(plan_.microbatches) + " micro-batches on " +
                            std::to_string(plan_.world) + " ranks are more than can be played");
    }
  }

  /// @return whether the step completes
  bool check_step(const StatedPlan& stated, const std::vector<std::vector<ComputeAction>>& orders,
                  const CheckedCosts<M>& costs) {
    std::optional<CheckedTimeline> whole = played(stated, orders, costs, true, model_.loss_mode);
    if (!whole) return false;
    if (!model_.loss_mode) {
      const auto backwards = played(stated, orders, costs, false, true);
      if (!backwards) return false;
      for (std::size_t r = 0; r < whole->ends.size(); ++r) {
        whole->ends[r] = whole->end + backwards->ends[r];
        whole->computing[r] += backwards->computing[r];
        whole->communicating[r] += backwards->communicating[r];
        whole->summing[r] += backwards->summing[r];
      }
      whole->end += backwards->end;
    }
    compare(stated, costs, *whole);
    return true;
  }

  /// The simulated timeline; empty, and a fault, if the ranks wait for each other.
  [[nodiscard]] std::optional<CheckedTimeline> played(const StatedPlan& stated,
                                                      const std::vector<std::vector<ComputeAction>>& orders,
                                                      const CheckedCosts<M>& costs, bool forwards, bool backwards) {
    CheckedOrder order(stated, orders, forwards, backwards);
    if (const int rank = order.stuck(); rank >= 0) {
      const CheckedAction& compute = order.next_compute(rank);
      fault("its ranks wait for each other: rank " + std::to_string(rank) + " never gets what it needs for the " +
            (compute.is_forward() ? "forward" : "backward") + " of stage " + std::to_string(compute.stage) +
            ", micro-batch " + std::to_string(compute.microbatch));
      return std::nullopt;
    }
    return TimelinePlayer<CheckedCosts<M>>(stated, order, costs).play(backwards);
  }

  void compare(const StatedPlan& stated, const CheckedCosts<M>& costs, const CheckedTimeline& timeline) {
    double step = timeline.end, busy = 0;
    int used = 0;
    for (std::size_t r = 0; r < timeline.ends.size(); ++r) {
      double update = 0;
      for (const int s : stated.stages_on(r)) update += costs.update(s).value();
      step = std::max(step, timeline.ends[r] + update);
      busy += timeline.computing[r] + update;
      used += stated.stages_on(r).empty() ? 0 : 1;
    }
    for (int s = 0; s < stated.stages(); ++s) {
      const StagePlan& stage = plan_.stages[static_cast<std::size_t>(s)];
      double communication = 0, summing = 0;
      for (const Rank rank : stage.mesh.ranks()) {
        communication = std::max(communication, timeline.communicating[rank.index()] / plan_.microbatches);
        summing = std::max(summing, timeline.summing[rank.index()]);
      }
      const NodeCost& cost = costs.of_stage(s, stated.largest_slice(s));
      const std::string name = "stage " + std::to_string(s) + "'s ";
      demand_equal(name + "forward", stage.forward.value(), cost.forward.value());
      demand_equal(name + "backward", stage.backward.value(), cost.backward.value());
      demand_equal(name + "messages", stage.communication.value(), communication);
      demand_equal(name + "gradient sums", stage.reduction.value(), summing);
    }
    verdict_.step = Seconds(step);
    demand_equal("step", plan_.step.value(), step);
    const double waiting = step > 0 ? std::max(0.0, 1 - busy / (used * step)) : 0;
    if (std::abs(waiting - plan_.bubble) > kRounding) demand_equal("bubble", plan_.bubble, waiting);
  }

  void check_memory(const StatedPlan& stated, const std::vector<std::vector<ComputeAction>>& orders,
                    const CheckedCosts<M>& costs) {
    const CheckedMemory<M> memory(stated, costs);
    const auto peaks = memory.peaks(orders);
    for (std::size_t s = 0; s < peaks.size(); ++s) {
      demand_equal("stage " + std::to_string(s) + "'s peak memory",
                   static_cast<double>(plan_.stages[s].peak_memory.value()), static_cast<double>(peaks[s]));
      demand_equal("stage " + std::to_string(s) + "'s host memory",
                   static_cast<double>(plan_.stages[s].host_memory.value()),
                   static_cast<double>(memory.on_host(static_cast<int>(s))));
    }
    for (std::size_t r = 0; r < orders.size(); ++r) {
      std::int64_t held = 0, on_host = 0;
      std::string names;
      for (const int s : stated.stages_on(r)) {
        held += peaks[static_cast<std::size_t>(s)];
        on_host += memory.on_host(s);
        names += (names.empty() ? "stage " : " and ") + std::to_string(s);
      }
      const bool first = !names.empty() && stated.ranks_of(stated.stages_on(r).front()).front() == Rank::of(r);
      if (first && on_host > plan_.host_memory.value()) {
        fault("what is offloaded of " + names + " is " + std::to_string(on_host) + " bytes, a rank may use " +
              std::to_string(plan_.host_memory.value()) + " of its host's");
      }
      if (!first || held <= plan_.device_memory.value()) continue;
      fault(names + (stated.stages_on(r).size() > 1 ? " need " : " needs ") + std::to_string(held) +
            " bytes, a rank has " + std::to_string(plan_.device_memory.value()));
    }
  }

  void check_bound() {
    const Certificate& claim = plan_.certificate;
    const BoundChecker<M> bound(model_, costs_, plan_);
    verdict_.lower_bound = bound.check(claim, verdict_.faults);
    if (verdict_.lower_bound > Seconds{}) {
      verdict_.gap = verdict_.step / verdict_.lower_bound - 1;
      verdict_.claims_less = claim.lower_bound < verdict_.lower_bound * (1 - kRounding);
      const double claimed = verdict_.claims_less ? verdict_.step / claim.lower_bound - 1 : verdict_.gap;
      if (claim.lower_bound > Seconds{} && std::abs(claim.gap - claimed) > kRounding * (1 + std::abs(claimed)))
        demand_equal("gap", claim.gap, claimed);
    }
    for (const StagePlan& stage : plan_.stages) {
      if (stage.mesh.tensor() > claim.tensor_parallel)
        fault("the certificate is of no more than " + std::to_string(claim.tensor_parallel) +
              " tensor shards a replica, the plan has " + std::to_string(stage.mesh.tensor()));
    }
    if (claim.searched_bound > plan_.step * (1 + kRounding))
      fault("what the search claims as a bound is above the plan's own step");
  }

  static std::string hexadecimal(std::uint64_t hash) {
    std::array<char, 20> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "%016llx", static_cast<unsigned long long>(hash));
    return buffer.data();
  }

  static constexpr double kRounding = 1e-9;
  static constexpr std::int64_t kMostSamples = std::int64_t{1} << 36;
  static constexpr double kMostMessages = 1 << 25;

  const ModelProfile& model_;
  const M& costs_;
  const Cluster& cluster_;
  const Plan& plan_;
  PlanVerdict verdict_;
};

}  // namespace detail

/// Computes again, from model, costs and cluster, what a plan states: stages, step, memory, lower bound and gap. Takes
/// any schedule, ZeRO level and recomputed segments. It shares with the planner only the cost model and the table of
/// schedules. What crosses stages, orders, clock, memory and bound are written a second time. The orders of a
/// synthesised schedule are evidence: each compute action occurs once for each micro-batch, and no rank waits for ever.
/// What the search claims beyond the bound (that it came to its end) is not checked.
/// @throws InvalidArgument if the plan has too many micro-batches and ranks to be simulated
template <CostModel<Graph<OpProfile, ValueProfile>> M>
[[nodiscard]] PlanVerdict check_plan(const ModelProfile& model, const M& costs, const Cluster& cluster,
                                     const Plan& plan) {
  return detail::PlanChecker<M>(model, costs, cluster, plan).check();
}

}  // namespace autopar
