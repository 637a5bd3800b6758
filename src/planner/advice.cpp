#include <autopar/plan/report/advice.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/plan/text.hpp>

namespace autopar {

namespace {

constexpr double kLeastGain = 0.001;

/// Of what the plan says itself.
void add_runners_up(std::vector<Advice>& out, const Plan& plan) {
  for (const RunnerUp& other : plan.runners_up) {
    if (other.reason.starts_with("does not fit") && other.step < plan.step)
      out.push_back({"more memory a rank", other.step, other.summary, other.reason});
  }
}

void add_bounds(std::vector<Advice>& out, const Plan& plan) {
  if (plan.bubble > 0)
    out.push_back(
        {"ranks that never wait", plan.step * (1 - plan.bubble), "",
         "the average rank waits " + percent(plan.bubble) + " of the step: more micro-batches, or another schedule",
         true});
  if (plan.certificate.lower_bound > Seconds{})
    out.push_back({"any other plan of this batch on these devices", plan.certificate.lower_bound, "",
                   "no plan takes less, by the certificate", true});
}

}  // namespace

ProfiledCost with_faster_links(const ProfiledCost& costs, double factor) {
  Cluster cluster = costs.cluster();
  MeasuredCosts measured = costs.measured();
  if (std::isinf(factor)) {
    for (auto& level : cluster.levels) level.link = {Seconds{}, BytesPerSecond(1e30)};
    measured.links = {};
    return {std::move(cluster), std::move(measured)};
  }
  for (auto& level : cluster.levels) {
    level.link.bandwidth *= factor;
    level.link.latency *= 1 / factor;
  }
  for (auto& [link, curve] : measured.links.messages) curve = curve.scaled(1 / factor);
  for (auto& [group, curve] : measured.links.all_reduces) curve = curve.scaled(1 / factor);
  return {std::move(cluster), std::move(measured)};
}

std::vector<Advice> advice_without_search(const Plan& plan, const ModelProfile& profile, const ProfiledCost& costs,
                                          const StepTimeline& timeline) {
  std::vector<Advice> out;
  add_runners_up(out, plan);
  const auto step_of = [&](const Plan& changed, const ProfiledCost& with) {
    // what the same simulation makes of both: costs need not be those that the plan was made with
    return plan.step * (timeline_of(changed, profile, with).step / timeline.step);
  };
  if (timeline.step > Seconds{}) {
    if (plan.world > 1) {
      out.push_back({"10 % faster links", step_of(plan, with_faster_links(costs, 1.1)), "", "the same plan"});
      out.push_back(
          {"links that take no time", step_of(plan, with_faster_links(costs, HUGE_VAL)), "", "the same plan", true});
    }
    Plan relaxed = plan;
    for (StagePlan& stage : relaxed.stages) stage.recomputed.clear();
    if (relaxed != plan)
      out.push_back({"memory to keep all activations", step_of(relaxed, costs), "", "nothing is recomputed"});
    relaxed = plan;
    relaxed.offload = Offload::kNone;
    if (relaxed != plan)
      out.push_back({"memory to keep the optimizer's state", step_of(relaxed, costs), "", "nothing is offloaded"});
  }
  add_bounds(out, plan);
  std::erase_if(out, [&](const Advice& one) { return one.gain(plan.step) < kLeastGain; });
  std::ranges::stable_sort(out, [&](const Advice& a, const Advice& b) {
    return std::pair(a.is_bound, -a.gain(plan.step)) < std::pair(b.is_bound, -b.gain(plan.step));
  });
  return out;
}

}  // namespace autopar
