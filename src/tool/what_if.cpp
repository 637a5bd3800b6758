#include "what_if.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <variant>

#include <autopar/core/error.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/plan/memory/memory.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/outcome.hpp>
#include <autopar/plan/report/advice.hpp>
#include <autopar/plan/report/step_timeline.hpp>

#include "planning.hpp"

namespace autopar::tool {

namespace {

WhatIf try_change(const std::string& change, const Problem& problem, const std::function<void(Problem&)>& apply) {
  Problem changed = problem;
  apply(changed);
  try {
    PlanOutcome outcome = try_plan(changed);
    if (auto* plan = std::get_if<Plan>(&outcome)) return {change, std::move(*plan), ""};
    return {change, std::nullopt, InfeasiblePlan(std::get<Infeasible>(std::move(outcome))).what()};
  } catch (const InvalidArgument& contradiction) {  // such as forced replicas that one device more contradicts
    return {change, std::nullopt, contradiction.what()};
  }
}

/// A change after which the plan runs as well as before: where the search finds nothing faster, the plan stays.
WhatIf try_improvement(const std::string& change, const Plan& plan, const Problem& problem,
                       const std::function<void(Problem&)>& apply) {
  Problem changed = problem;
  apply(changed);
  WhatIf out = try_change(change, problem, apply);
  Plan kept = plan;
  kept.step = std::min(plan.step, timeline_of(plan, changed.profile, costs_of(changed, plan)).step);
  if (!out.plan || kept.step < out.plan->step) out.plan = std::move(kept);
  return out;
}

/// Tensor degrees that all stages could have and have not.
std::vector<int> other_degrees(const Plan& plan, const Problem& problem) {
  std::vector<int> degrees =
      detail::possible_degrees(problem.profile.tensor_regions, problem.request.runtime.max_tensor_parallel, plan.world);
  std::erase_if(degrees, [&](int degree) {
    return std::ranges::all_of(plan.stages, [&](const StagePlan& stage) { return stage.mesh.tensor() == degree; });
  });
  return degrees;
}

}  // namespace

ProfiledCost costs_of(const Problem& problem, const Plan& plan) {
  return {at_precision(problem.cluster, plan.precision), problem.measured};
}

Breakdown breakdown_of(const Plan& plan, const Problem& problem) {
  Breakdown out;
  const StepTimeline timeline = timeline_of(plan, problem.profile, costs_of(problem, plan));
  const ProfiledCost free_links = with_faster_links(costs_of(problem, plan), HUGE_VAL);
  const StepTimeline unhindered = timeline_of(plan, problem.profile, free_links);
  double busy = 0;  // without what ranks exchange while they compute
  int used = 0;
  for (std::size_t r = 0; r < unhindered.busy.size(); ++r) {
    busy += unhindered.busy[r].value();
    used += unhindered.stages[r].empty() ? 0 : 1;
  }
  const Bytes most = peak_of_ranks(meshes_of(plan), [&](std::size_t stage) { return plan.stages[stage].peak_memory; });
  out.memory = most / plan.device_memory;
  if (!(timeline.step > Seconds{})) return out;
  out.computing = busy / (used * timeline.step.value());
  out.links = std::max(0.0, 1 - unhindered.step / timeline.step);
  out.waiting = std::max(0.0, 1 - out.computing - out.links);
  return out;
}

std::vector<WhatIf> changes_of(const Plan& plan, const Problem& problem) {
  std::vector<WhatIf> out;
  out.push_back(try_improvement("one more device", plan, problem, [](Problem& p) {
    if (p.request.world == p.cluster.devices) p.cluster = resized(p.cluster, p.cluster.devices + 1);
    ++p.request.world;
  }));
  out.push_back(try_improvement("10 % more memory", plan, problem, [](Problem& p) {
    const auto more = [](Bytes bytes) {
      return Bytes(static_cast<std::int64_t>(static_cast<double>(bytes.value()) * 1.1));
    };
    p.cluster.device.memory = more(p.cluster.device.memory);
    p.request.options.device_memory = more(p.request.options.device_memory);
  }));
  out.push_back(try_improvement("10 % faster links", plan, problem, [](Problem& p) {
    const ProfiledCost faster = with_faster_links(ProfiledCost(p.cluster, p.measured), 1.1);
    p.cluster = faster.cluster();
    p.measured = faster.measured();
  }));
  for (const int degree : other_degrees(plan, problem)) {
    out.push_back(try_change(degree == 1 ? "no tensor shards" : std::to_string(degree) + " tensor shards a replica",
                             problem, [&](Problem& p) { p.request.options.tensor_parallel = degree; }));
  }
  return out;
}

void adopt(const Plan& plan, Problem& problem) {
  PlanRequest& request = problem.request;
  request.world = plan.world;
  request.batch = plan.batch;
  request.options.gradient_accumulation = plan.gradient_copies > 1;
  request.options.optimizer_state_factor = plan.optimizer_state_factor;
  request.options.device_memory = plan.device_memory;
  request.options.memory_margin = 0;
  request.options.precision = plan.precision;
}

}  // namespace autopar::tool
