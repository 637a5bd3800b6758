#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/concepts.hpp>
#include <autopar/plan/check/bound.hpp>
#include <autopar/plan/check/course.hpp>
#include <autopar/plan/check/stated_plan.hpp>

namespace autopar {

/// What a plan is worth, worked out again.
struct PlanVerdict {
  std::vector<std::string> faults;  ///< what the plan states and does not hold; empty = accepted
  Seconds step{};                   ///< of the plan as it is divided
  Seconds lower_bound{};            ///< that its evidence supports; 0 = none
  double gap = 0;                   ///< step / lower_bound - 1
  [[nodiscard]] bool accepted() const { return faults.empty(); }
};

namespace detail {

/// Costs of stages by samples, each worked out once.
template <class M>
class CheckedCosts {
 public:
  CheckedCosts(const ModelProfile& model, const Plan& plan, const M& costs)
      : model_(model), plan_(plan), costs_(costs) {}

  [[nodiscard]] const NodeCost& of_stage(int stage, std::int64_t samples) const {
    const auto [entry, added] = known_.try_emplace({stage, samples});
    if (!added) return entry->second;
    const auto& ranks = plan_.stages[static_cast<std::size_t>(stage)].ranks;
    for (const NodeId atom : plan_.stages[static_cast<std::size_t>(stage)].atoms) {
      const Bytes totals = model_.graph[atom].totals;
      if (totals > Bytes(0) && ranks.size() > 1) {  // added up by the replicas, in both directions
        const Seconds sum = costs_.all_reduce(totals, ranks);
        entry->second.forward += sum;
        entry->second.backward += sum;
      }
      const NodeCost one = costs_.node(model_.graph, atom, static_cast<double>(samples));
      entry->second.forward += one.forward;
      entry->second.backward += one.backward;
      entry->second.saved += one.saved;
      entry->second.workspace = std::max(entry->second.workspace, one.workspace);
    }
    return entry->second;
  }
  [[nodiscard]] Seconds transfer(Bytes bytes, Rank from, Rank to) const { return costs_.transfer(bytes, from, to); }
  [[nodiscard]] Seconds all_reduce(Bytes bytes, std::span<const Rank> ranks) const {
    return costs_.all_reduce(bytes, ranks);
  }
  [[nodiscard]] Seconds update(Bytes bytes, double factor) const { return costs_.update(bytes, factor); }

 private:
  const ModelProfile& model_;
  const Plan& plan_;
  const M& costs_;
  mutable std::map<std::pair<int, std::int64_t>, NodeCost> known_;
};

template <class M>
class PlanChecker {
 public:
  PlanChecker(const ModelProfile& model, const M& costs, const Cluster& cluster, const Plan& plan)
      : model_(model), costs_(costs), cluster_(cluster), plan_(plan) {}

  [[nodiscard]] PlanVerdict check() && {
    check_target();
    if (!verdict_.faults.empty()) return std::move(verdict_);
    const StatedPlan stated(model_, plan_);
    const CheckedCosts<M> costs(model_, plan_, costs_);
    check_size(stated);
    check_step(stated, costs);
    check_memory(stated, costs);
    check_lists(stated);
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
    if (plan_.batch < 1 || plan_.batch > kMostSamples)
      fault("the plan is for " + std::to_string(plan_.batch) + " samples");
    if (const auto broken = StatedPlan::fault_of(model_, plan_); !broken.empty()) fault(broken);
  }

  /// @throws InvalidArgument if the plan is too large to be played
  void check_size(const StatedPlan& stated) const {
    double messages = 2.0 * plan_.world;
    for (const Crossing& crossing : stated.crossings()) {
      for (const int stage : {crossing.from, crossing.to}) {
        messages += stated.is_stage(stage)
                        ? static_cast<double>(plan_.stages[static_cast<std::size_t>(stage)].ranks.size())
                        : plan_.world;
      }
    }
    if (messages * plan_.microbatches > kMostMessages) {
      throw InvalidArgument("check: " + std::to_string(plan_.microbatches) + " micro-batches on " +
                            std::to_string(plan_.world) + " ranks are more than can be played");
    }
  }

  void check_step(const StatedPlan& stated, const CheckedCosts<M>& costs) {
    const auto ranks = static_cast<std::size_t>(plan_.world);
    CheckedCourse whole{0, {}, std::vector<double>(ranks), std::vector<double>(ranks), std::vector<double>(ranks)};
    const auto add = [&](bool forwards, bool backwards) {
      CheckedOrder order(stated, forwards, backwards);
      const CheckedCourse phase = CoursePlayer<CheckedCosts<M>>(stated, order, costs).play(backwards);
      whole.ends.assign(ranks, 0);
      for (std::size_t r = 0; r < ranks; ++r) {
        whole.ends[r] = whole.end + phase.ends[r];
        whole.computing[r] += phase.computing[r];
        whole.communicating[r] += phase.communicating[r];
        whole.summing[r] += phase.summing[r];
      }
      whole.end += phase.end;
    };
    if (model_.loss_mode) {
      add(true, true);
    } else {
      add(true, false);
      add(false, true);
    }
    compare(stated, costs, whole);
  }

  void compare(const StatedPlan& stated, const CheckedCosts<M>& costs, const CheckedCourse& course) {
    double step = course.end, busy = 0;
    int used = 0;
    for (int s = 0; s < stated.stages(); ++s) {
      const StagePlan& stage = plan_.stages[static_cast<std::size_t>(s)];
      const double update = costs.update(stated.trainable_bytes(s), plan_.optimizer_state_factor).value();
      double communication = 0, summing = 0;
      for (const Rank rank : stage.ranks) {
        communication = std::max(communication, course.communicating[rank.index()] / plan_.microbatches);
        summing = std::max(summing, course.summing[rank.index()]);
        step = std::max(step, course.ends[rank.index()] + update);
        busy += course.computing[rank.index()] + update;
        ++used;
      }
      const NodeCost& cost = costs.of_stage(s, stated.largest_share(s));
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

  void check_memory(const StatedPlan& stated, const CheckedCosts<M>& costs) {
    const int count = plan_.microbatches;
    std::vector<std::int64_t> bytes(plan_.stages.size(), 0), share(bytes);
    std::vector<std::int64_t> flying(bytes);
    for (int s = 0; s < stated.stages(); ++s) {
      const auto at = static_cast<std::size_t>(s);
      share[at] = stated.largest_share(s);
      flying[at] = stated.all_forwards_first() ? count : std::min(count, stated.stages() - s);
      const NodeCost& cost = costs.of_stage(s, share[at]);
      bytes[at] = cost.saved.value() * flying[at] + cost.workspace.value();
      std::int64_t parameters = 0;
      for (const ParameterId id : stated.parameters(s)) {
        const ParameterProfile& parameter = model_.parameters[id.index()];
        const auto size = static_cast<double>(parameter.bytes.value());
        parameters += parameter.bytes.value();
        if (!parameter.trainable) continue;
        bytes[at] += kGradientCopies * parameter.bytes.value() +
                     static_cast<std::int64_t>(std::ceil(size * plan_.optimizer_state_factor));
      }
      bytes[at] += parameters;
      demand_equal("stage " + std::to_string(s) + "'s parameter bytes",
                   static_cast<double>(plan_.stages[at].parameter_bytes.value()), static_cast<double>(parameters));
    }
    for (const Crossing& crossing : stated.crossings()) {
      for (const int stage : {crossing.from, crossing.to}) {
        if (!stated.is_stage(stage)) continue;
        const auto at = static_cast<std::size_t>(stage);
        const auto of = [&](const Affine& size) {
          return static_cast<std::int64_t>(std::ceil(std::max(0.0, size.at(static_cast<double>(share[at])))));
        };
        const std::int64_t ahead = stage == crossing.to ? 1 : 0;  // the reader's next one is on its way
        bytes[at] += of(crossing.value) * std::min<std::int64_t>(count, flying[at] + ahead) +
                     of(crossing.gradient) * std::min(count, 2);
      }
    }
    for (std::size_t s = 0; s < bytes.size(); ++s) {
      const std::string name = "stage " + std::to_string(s);
      demand_equal(name + "'s peak memory", static_cast<double>(plan_.stages[s].peak_memory.value()),
                   static_cast<double>(bytes[s]));
      if (bytes[s] > plan_.device_memory.value()) {
        fault(name + " needs " + std::to_string(bytes[s]) + " bytes, a rank has " +
              std::to_string(plan_.device_memory.value()));
      }
    }
  }

  void check_lists(const StatedPlan& stated) {
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const StagePlan& stage = plan_.stages[s];
      const std::string name = "stage " + std::to_string(s);
      std::vector<std::int32_t> ops;
      for (const NodeId atom : stage.atoms) {
        const auto& own = model_.graph[atom].ops;
        ops.insert(ops.end(), own.begin(), own.end());
      }
      std::sort(ops.begin(), ops.end());
      if (stage.ops != ops) fault(name + "'s operators are not those of its atoms");
      const auto read = stated.parameters(static_cast<int>(s));
      if (stage.parameters != std::vector<ParameterId>(read.begin(), read.end()))
        fault(name + "'s parameters are not those that its atoms read");
      std::int64_t elements = 0;
      for (const ParameterId parameter : read)
        elements += model_.parameters[parameter.index()].elements;
      demand_equal(name + "'s parameter elements", static_cast<double>(stage.parameter_elements),
                   static_cast<double>(elements));
    }
  }

  void check_bound() {
    const Certificate& claim = plan_.certificate;
    const BoundChecker<M> bound(model_, costs_, plan_);
    verdict_.lower_bound = bound.check(claim, verdict_.faults);
    if (verdict_.lower_bound > Seconds{}) {
      verdict_.gap = verdict_.step / verdict_.lower_bound - 1;
      if (std::abs(claim.gap - verdict_.gap) > kRounding * (1 + std::abs(verdict_.gap)))
        demand_equal("gap", claim.gap, verdict_.gap);
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
  static constexpr int kGradientCopies = 2;  // the bucket and `.grad`

  const ModelProfile& model_;
  const M& costs_;
  const Cluster& cluster_;
  const Plan& plan_;
  PlanVerdict verdict_;
};

}  // namespace detail

/// Works out from model, costs and cluster what a plan states: stages, step, memory, lower bound and gap. Shares
/// nothing with the planner but the cost model: its own reading of what crosses stages, its own order of turns, its own
/// clock, its own bound. What the search claims beyond the bound (that it came to its end) is not looked into.
/// @throws InvalidArgument if the plan has too many micro-batches and ranks to be played
template <CostModel<Graph<OpProfile, ValueProfile>> M>
[[nodiscard]] PlanVerdict check_plan(const ModelProfile& model, const M& costs, const Cluster& cluster,
                                     const Plan& plan) {
  return detail::PlanChecker<M>(model, costs, cluster, plan).check();
}

}  // namespace autopar
