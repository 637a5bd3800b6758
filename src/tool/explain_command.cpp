#include <cmath>
#include <functional>
#include <optional>
#include <ostream>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/plan/memory/memory.hpp>
#include <autopar/plan/memory/optimizations.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/report/make_plan.hpp>
#include <autopar/plan/report/print.hpp>

#include "commands.hpp"
#include "planning.hpp"
#include "timeline.hpp"
#include "tool.hpp"

namespace autopar::tool {

namespace {

/// Where the step of a plan goes, for the average rank in use; the shares sum up to 1.
struct Breakdown {
  double computing = 0, links = 0, waiting = 0;
  double memory = 0;  ///< of the fullest rank
};

ProfiledCost costs_of(const Problem& problem, const Plan& plan) {
  return {at_precision(problem.cluster, plan.precision), problem.measured};
}

Breakdown breakdown_of(const Plan& plan, const Problem& problem) {
  Breakdown out;
  const StepTimeline timeline = timeline_of(plan, problem.profile, costs_of(problem, plan));
  Problem free_links = problem;
  for (auto& level : free_links.cluster.levels) level.link = {Seconds{}, BytesPerSecond(1e30)};
  free_links.measured.links = {};
  const StepTimeline unhindered = timeline_of(plan, problem.profile, costs_of(free_links, plan));
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

std::string shape_of(const Plan& plan) { return describe(plan); }

/// One change of the machines, and what the planner makes of it.
struct WhatIf {
  std::string change;
  std::optional<Plan> plan;
  std::string failure;  ///< if there is no plan
};

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
    for (auto& level : p.cluster.levels) {
      level.link.bandwidth *= 1.1;
      level.link.latency *= 1 / 1.1;
    }
    for (auto& [link, curve] : p.measured.links.messages) curve = curve.scaled(1 / 1.1);
    for (auto& [group, curve] : p.measured.links.all_reduces) curve = curve.scaled(1 / 1.1);
  }));
  for (const int degree : other_degrees(plan, problem)) {
    out.push_back(try_change(degree == 1 ? "no tensor shards" : std::to_string(degree) + " tensor shards a replica",
                             problem, [&](Problem& p) { p.request.options.tensor_parallel = degree; }));
  }
  return out;
}

std::string why(const Plan& plan, const Breakdown& parts) {
  std::string shares = "of the step the average rank in use computes " + percent(parts.computing) + ", links cost " +
                       percent(parts.links) + ", bubble " + percent(parts.waiting) + "; the fullest rank uses " +
                       percent(parts.memory) + " of its memory\n";
  switch (plan.binding) {
    case Binding::kMemory:
      return "binds: memory: a faster shape was found that does not fit (see the runners-up)\n" + shares;
    case Binding::kCompute:
      return "binds: compute: most of the step is arithmetic and memory traffic\n" + shares;
    case Binding::kBandwidth:
      return "binds: bandwidth: messages and gradient sums cost more than anything else\n" + shares;
    case Binding::kBubble:
      return "binds: bubble: ranks wait for other stages more than for anything else\n" + shares;
  }
  return shares;
}

std::string effect(const WhatIf& one, const Plan& plan) {
  if (!one.plan) return one.change + ": no plan: " + one.failure + "\n";
  const double gain = plan.step / one.plan->step - 1;
  const std::string shape = shape_of(*one.plan);
  const std::string same = shape == shape_of(plan) ? ", same shape" : ", " + shape;
  const std::string change = std::abs(gain) < 0.0005 ? "buys nothing"
                             : gain > 0              ? detail::formatted("%.1f", 100 * gain) + " % faster"
                                                     : detail::formatted("%.1f", -100 * gain) + " % slower";
  const std::string why = one.failure.empty() ? "" : " (no other plan: " + one.failure + ")";
  return one.change + ": " + readable(one.plan->step) + ", " + change + same + why + "\n";
}

nlohmann::ordered_json as_json(const Plan& plan, const Breakdown& parts, const std::vector<WhatIf>& changes) {
  nlohmann::ordered_json what_if = nlohmann::ordered_json::array();
  for (const auto& one : changes) {
    if (one.plan) {
      what_if.push_back({{"change", one.change},
                         {"step_s", one.plan->step.value()},
                         {"speed_up", plan.step / one.plan->step},
                         {"shape", shape_of(*one.plan)}});
    } else {
      what_if.push_back({{"change", one.change}, {"no_plan", one.failure}});
    }
  }
  return {{"binding", name_of(plan.binding)},
          {"computing", parts.computing},
          {"links", parts.links},
          {"waiting", parts.waiting},
          {"memory", parts.memory},
          {"what_if", std::move(what_if)},
          {"plan", nlohmann::ordered_json::parse(to_json(plan))}};
}

/// The request that a plan answers, beside its constraints.
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

}  // namespace

int explain_command(ExplainArguments arguments, std::ostream& out, std::ostream& err) {
  auto& files = arguments.files;
  std::optional<Plan> plan;
  if (files.size() != 2) {  // each is read once: one may be /dev/stdin
    plan = read_plan(files.front());
    files.erase(files.begin());
  }
  if (files.empty()) {
    out << (arguments.json ? to_json(*plan) : to_text(*plan));
    if (!arguments.json)
      out << "binds: " << name_of(plan->binding)
          << "; give the profile and the cluster as well to see what would help\n";
    return kDone;
  }
  arguments.problem.profile = files[0];
  arguments.problem.cluster = files[1];
  if (plan) {  // what the command line says counts more
    auto& settings = arguments.problem.settings;
    settings.insert(settings.begin(), plan->constraints.begin(), plan->constraints.end());
  }
  Problem problem = load_problem(arguments.problem);
  if (plan) {
    require_same(*plan, problem.profile, problem.cluster);
    adopt(*plan, problem);
    problem.notes.clear();
  } else {
    plan = make_plan(problem);
  }
  for (const auto& note : problem.notes) err << "autopar explain: note: " << printable_line(note) << '\n';
  const Breakdown parts = breakdown_of(*plan, problem);
  const auto changes = changes_of(*plan, problem);
  if (arguments.json) {
    out << as_json(*plan, parts, changes).dump(1) << '\n';
    return kDone;
  }
  out << to_text(*plan) << why(*plan, parts);
  for (const auto& one : changes) out << effect(one, *plan);
  return kDone;
}

}  // namespace autopar::tool
