#include <algorithm>
#include <ostream>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/report_page.hpp>
#include <autopar/plan/report/print.hpp>

#include "commands.hpp"
#include "tool.hpp"
#include "what_if.hpp"

namespace autopar::tool {

namespace {

/// Searches for what changes of the machines would buy, and adds it to what the plan itself tells.
void add_searched_advice(RunReport& report, Problem& problem) {
  std::vector<Advice> all;
  for (const WhatIf& one : changes_of(report.plan, problem)) {
    const bool is_same = one.plan && describe(*one.plan) == describe(report.plan);
    all.push_back({one.change, one.plan ? std::optional(one.plan->step) : std::nullopt,
                   one.plan ? (is_same ? "the same shape" : describe(*one.plan)) : "", one.failure});
  }
  for (Advice& one : report.advice) {
    if (std::ranges::count(all, one.change, &Advice::change) == 0) all.push_back(std::move(one));
  }
  std::ranges::stable_sort(all, [&](const Advice& a, const Advice& b) {
    return std::pair(a.is_bound, -a.gain(report.plan.step)) < std::pair(b.is_bound, -b.gain(report.plan.step));
  });
  report.advice = std::move(all);
}

RunReport report_of(ReportArguments& arguments) {
  Plan plan = read_plan(arguments.plan);
  if (arguments.profile.empty()) return plan_alone(std::move(plan));
  if (arguments.cluster.empty()) {
    const ModelProfile profile = load_profile(arguments.profile);
    if (plan.model != profile.hash)
      throw InvalidArgument("the plan is of another model than '" + arguments.profile + "'");
    return make_run_report(std::move(plan), profile, nullptr);
  }
  arguments.problem.profile = arguments.profile;
  arguments.problem.cluster = arguments.cluster;
  arguments.problem.settings = plan.constraints;
  Problem problem = load_problem(arguments.problem);
  require_same(plan, problem.profile, problem.cluster);
  adopt(plan, problem);
  const ProfiledCost costs = costs_of(problem, plan);
  RunReport report = make_run_report(std::move(plan), problem.profile, &costs);
  if (!arguments.quick && report.timeline.step > Seconds{}) add_searched_advice(report, problem);
  return report;
}

}  // namespace

int report_command(ReportArguments arguments, std::ostream& out) {
  if (!arguments.cluster.empty() && arguments.profile.empty())
    throw InvalidArgument("CLUSTER is of no use without PROFILE; the order is 'autopar report PLAN PROFILE CLUSTER'");
  if (!is_page(arguments.out))
    throw InvalidArgument("'" + arguments.out + "' does not end in .html; 'autopar explain PLAN' writes text");
  const RunReport report = report_of(arguments);
  write_report_page(arguments.out, report, arguments.force ? Overwrite::kAny : Overwrite::kOwn);
  out << printable_line(arguments.out) << ": " << describe(report.plan) << ", " << readable(report.plan.step)
      << " a step\n";
  return kDone;
}

}  // namespace autopar::tool
