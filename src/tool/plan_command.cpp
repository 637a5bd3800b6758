#include <ostream>

#include <autopar/core/printable.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/plan/report/print.hpp>

#include "commands.hpp"
#include "planning.hpp"
#include "tool.hpp"

namespace autopar::tool {

int plan_command(const PlanArguments& arguments, std::ostream& out, std::ostream& err) {
  const Problem problem = load_problem(arguments.problem);
  const Overwrite overwrite = arguments.force ? Overwrite::kAny : Overwrite::kOwn;
  if (!arguments.out.empty()) require_replaceable(arguments.out, file_mark("plan", problem.profile.hash), overwrite);
  const Plan plan = make_plan(problem);
  if (!arguments.out.empty()) write_plan(arguments.out, plan, overwrite);
  for (const auto& note : problem.notes) err << "autopar plan: note: " << printable_line(note) << '\n';
  out << (arguments.json ? to_json(plan) : to_text(plan));
  return kDone;
}

}  // namespace autopar::tool
