#include <cmath>
#include <optional>
#include <ostream>
#include <utility>

#include <nlohmann/json.hpp>

#include <autopar/core/printable.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/plan/report/print.hpp>

#include "commands.hpp"
#include "planning.hpp"
#include "tool.hpp"
#include "what_if.hpp"

namespace autopar::tool {

namespace {

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
  const std::string shape = describe(*one.plan);
  const std::string same = shape == describe(plan) ? ", same shape" : ", " + shape;
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
                         {"shape", describe(*one.plan)}});
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
