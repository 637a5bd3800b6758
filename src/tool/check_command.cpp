#include <cmath>
#include <ostream>

#include <nlohmann/json.hpp>

#include <autopar/core/printable.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/plan/text.hpp>
#include <autopar/plan/verify/check_plan.hpp>

#include "commands.hpp"
#include "tool.hpp"

namespace autopar::tool {

namespace {

/// A bound of next to nothing leaves a gap that is no number.
std::string gap_text(double gap) { return std::isfinite(gap) ? gap_percent(gap, 4) : std::string("unknown"); }

void print_verdict(const PlanVerdict& verdict, const Certificate& claim, std::ostream& out) {
  out << (verdict.accepted() ? "accepted" : "rejected") << '\n';
  for (const auto& fault : verdict.faults) out << "fault: " << printable_line(fault) << '\n';
  if (verdict.step > Seconds{}) out << "step, played again: " << readable(verdict.step) << '\n';
  if (verdict.claims_less && claim.lower_bound > Seconds{}) {
    out << "lower bound, claimed: " << readable(claim.lower_bound) << "; gap " << gap_text(claim.gap)
        << "; weaker than what follows here:\n";
  }
  if (verdict.lower_bound > Seconds{}) {
    out << "lower bound, derived again: " << readable(verdict.lower_bound) << "; gap " << gap_text(verdict.gap) << '\n';
  }
  if (claim.searched_to_end) {
    out << "claimed by the search, not verified here: no other plan under its options is faster\n";
  } else if (claim.searched_bound > Seconds{}) {
    out << "claimed by the search, not verified here: no plan under its options takes less than "
        << readable(claim.searched_bound) << '\n';
  }
}

}  // namespace

int check_command(const CheckArguments& arguments, std::ostream& out) {
  if (arguments.cluster.empty()) return check_instance(arguments, out);
  const Plan plan = read_plan(arguments.plan);
  const ModelProfile profile = load_profile(arguments.profile);
  const Cluster cluster = read_cluster(arguments.cluster);
  require_same(plan, profile, cluster);
  const PlanVerdict verdict = check_plan(
      profile, ProfiledCost(at_precision(cluster, plan.precision), load_costs(arguments.costs)), cluster, plan);
  if (arguments.json) {
    nlohmann::ordered_json json{{"accepted", verdict.accepted()},
                                {"step_s", verdict.step.value()},
                                {"lower_bound_s", verdict.lower_bound.value()},
                                {"claimed_lower_bound_s", plan.certificate.lower_bound.value()},
                                {"gap", verdict.gap},
                                {"faults", verdict.faults},
                                {"claimed_bound_s", plan.certificate.searched_bound.value()},
                                {"claimed_searched_to_end", plan.certificate.searched_to_end}};
    out << json.dump() << '\n';
  } else {
    print_verdict(verdict, plan.certificate, out);
  }
  return verdict.accepted() ? kDone : kNo;
}

}  // namespace autopar::tool
