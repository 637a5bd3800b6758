#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iomanip>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/concepts.hpp>
#include <autopar/plan/verify/bound.hpp>
#include <autopar/plan/verify/clock.hpp>
#include <autopar/plan/verify/costs.hpp>
#include <autopar/plan/verify/ledger.hpp>
#include <autopar/plan/verify/shape.hpp>
#include <autopar/plan/verify/stated_plan.hpp>

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

namespace verify {

template <class M>
class PlanCheck {
 public:
  PlanCheck(const ModelProfile& model, const M& costs, const Cluster& cluster, const Plan& plan)
      : model_(model), costs_(costs), cluster_(cluster), plan_(plan) {}

  [[nodiscard]] PlanVerdict check() && {
    check_target();
    if (!verdict_.accepted()) return std::move(verdict_);
    const StatedPlan stated(model_, plan_);
    const StatedCosts<M> costs(stated, costs_);
    try {
      check_step(stated, costs);
    } catch (const InvalidArgument& error) {
      demand(false, "stages[].ranks, schedule, orders: " + std::string(error.what()));
      return std::move(verdict_);
    }
    check_memory(stated, Ledger<M>(stated, costs));
    verdict_.lower_bound = BoundCheck<M>(stated, costs_).check(verdict_.faults);
    check_claims();
    return std::move(verdict_);
  }

 private:
  template <class T>
  static std::string text(T value) {
    std::ostringstream out;
    out << std::hex << std::setprecision(10) << value;
    return out.str();
  }
  void demand(bool holds, const std::string& fault) {
    if (!holds) verdict_.faults.push_back(fault);
  }
  void demand_same(const char* what, const std::string& stated, const char* whose, const std::string& found) {
    demand(stated == found, std::string("the plan states ") + what + " " + stated + ", the " + whose + " has " + found);
  }
  void demand_equal(const std::string& what, double stated, double found) {
    const double scale = std::max({std::abs(stated), std::abs(found), 1e-15});
    demand(std::abs(stated - found) <= kRounding * scale,
           "the plan states " + what + " = " + text(stated) + ", but it is " + text(found));
  }
  void demand_equal(const std::string& what, Bytes stated, Bytes found) {
    demand_equal(what, static_cast<double>(stated.value()), static_cast<double>(found.value()));
  }
  void demand_room(const std::string& what, Bytes needed, const std::string& whose, Bytes there) {
    demand(needed <= there, what + " " + std::to_string(needed.value()) + " bytes a rank, " + whose + " " +
                                std::to_string(there.value()));
  }

  void check_target() {
    const auto chunked = [](bool is) { return is ? "in chunks" : "whole"; };
    const auto linear = [](bool is) { return is ? "row-parallel" : "column-parallel, if at all"; };
    demand_same("model", text(plan_.model), "profile", text(model_.hash));
    demand_same("logits of class heads", chunked(plan_.chunked_heads), "profile", chunked(model_.chunked_heads));
    demand_same("single linear layers", linear(plan_.layers_by_inputs), "profile", linear(model_.layers_by_inputs));
    demand_same("devices", "'" + plan_.device + "'", "cluster", "'" + cluster_.device.name + "'");
    demand(plan_.world <= cluster_.devices, "the plan is for " + std::to_string(plan_.world) + " ranks, the cluster '" +
                                                cluster_.name + "' has " + std::to_string(cluster_.devices) +
                                                " devices");
    demand_room("the plan counts on", plan_.device_memory, "the devices have", cluster_.device.memory);
    if (plan_.offload != Offload::kNone) {
      const Bytes host = cluster_.host ? cluster_.host->memory : Bytes(0);
      demand(UpdatesOnHost<M>, "the plan offloads the optimizer, but these costs do not know what that takes");
      demand_room("the plan counts on host memory of", plan_.host_memory, "there are", host);
      demand(plan_.host_memory > Bytes(0) || host == Bytes(0),
             "the plan counts on no host memory, but there are " + std::to_string(host.value()) + " bytes");
    }
    demand(plan_.batch != 0, "the plan is for no samples");
    const std::string fault = fault_in_shape(model_, plan_);
    demand(fault.empty(), fault);
  }

  /// Updates follow the phases of a call. @throws InvalidArgument if the program of a phase is unsound
  void check_step(const StatedPlan& stated, const StatedCosts<M>& costs) {
    Clock clock(stated, costs);
    clock.play();
    const auto& times = clock.times();
    double step = clock.end(), busy = 0;
    int used = 0;
    for (std::size_t r = 0; r < times.size(); ++r) {
      double update = 0;
      for (const std::size_t s : stated.stages_on[r]) update += costs.update(s).value();
      step = std::max(step, times[r].end + update);
      busy += times[r].computing + update;
      used += stated.stages_on[r].empty() ? 0 : 1;
    }
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const StagePlan& stage = plan_.stages[s];
      double communicating = 0, summing = 0;
      for (const Rank rank : stage.mesh.ranks()) {
        communicating = std::max(communicating, times[rank.index()].communicating);
        summing = std::max(summing, times[rank.index()].summing);
      }
      const NodeCost& cost = costs.of_stage(s, stated.stages[s].slice);
      const std::string name = "stage " + std::to_string(s) + "'s ";
      demand_equal(name + "forward", stage.forward.value(), cost.forward.value());
      demand_equal(name + "backward", stage.backward.value(), cost.backward.value());
      demand_equal(name + "messages", stage.communication.value(), communicating / plan_.microbatches);
      demand_equal(name + "gradient sums", stage.reduction.value(), summing);
    }
    verdict_.step = Seconds(step);
    demand_equal("step", plan_.step.value(), step);
    const double waiting = step > 0 ? std::max(0.0, 1 - busy / (used * step)) : 0;
    if (std::abs(waiting - plan_.bubble) > kRounding) demand_equal("bubble", plan_.bubble, waiting);
  }

  void check_memory(const StatedPlan& stated, const Ledger<M>& ledger) {
    const auto peaks = ledger.peaks();
    for (std::size_t s = 0; s < peaks.size(); ++s) {
      const std::string name = "stage " + std::to_string(s);
      demand_equal(name + "'s peak memory", plan_.stages[s].peak_memory, peaks[s]);
      demand_equal(name + "'s host memory", plan_.stages[s].host_memory, ledger.on_host(s));
      if (stated.beside(s).front() != s) continue;
      Bytes needed{}, on_host{};
      for (const std::size_t other : stated.beside(s)) {
        needed += peaks[other];
        on_host += ledger.on_host(other);
      }
      const std::string stages = name + (stated.beside(s).size() > 1 ? " and those beside it" : "");
      demand_room(stages + " need", needed, "a rank has", plan_.device_memory);
      demand_room(stages + " offload", on_host, "a rank may use of its host's", plan_.host_memory);
    }
  }

  void check_claims() {
    const Certificate& claim = plan_.certificate;
    if (verdict_.lower_bound > Seconds{}) {
      verdict_.gap = verdict_.step / verdict_.lower_bound - 1;
      verdict_.claims_less = claim.lower_bound < verdict_.lower_bound * (1 - kRounding);
      const double claimed = verdict_.claims_less ? verdict_.step / claim.lower_bound - 1 : verdict_.gap;
      if (claim.lower_bound > Seconds{} && std::abs(claim.gap - claimed) > kRounding * (1 + std::abs(claimed)))
        demand_equal("gap", claim.gap, claimed);
    }
    for (const StagePlan& stage : plan_.stages) {
      demand(stage.mesh.tensor() <= claim.tensor_parallel,
             "the certificate is of no more than " + std::to_string(claim.tensor_parallel) +
                 " tensor shards a replica, the plan has " + std::to_string(stage.mesh.tensor()));
    }
    demand(!(claim.searched_bound > plan_.step * (1 + kRounding)),
           "what the search claims as a bound is above the plan's own step");
  }

  static constexpr double kRounding = 1e-9;

  const ModelProfile& model_;
  const M& costs_;
  const Cluster& cluster_;
  const Plan& plan_;
  PlanVerdict verdict_;
};

}  // namespace verify

/// Computes again, from model, costs and cluster, what a plan states: stages, step, memory, lower bound and gap. Takes
/// any schedule, ZeRO level and recomputed segments. It shares with the planner the cost layer, the cut of buckets, and
/// the schedule layer, whose program it validates. What crosses stages, clock, memory and bound are written a second
/// time. What the search claims beyond the bound (that it came to its end) is not checked.
template <CostModel<Graph<OpProfile, ValueProfile>> M>
[[nodiscard]] PlanVerdict check_plan(const ModelProfile& model, const M& costs, const Cluster& cluster,
                                     const Plan& plan) {
  return verify::PlanCheck<M>(model, costs, cluster, plan).check();
}

}  // namespace autopar
