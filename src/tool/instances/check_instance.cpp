#include <cmath>
#include <ostream>

#include <nlohmann/json.hpp>

#include <autopar/bottleneck/certificate.hpp>
#include <autopar/bottleneck/instance_file.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/file.hpp>
#include <autopar/plan/text.hpp>

#include "tool/commands.hpp"
#include "tool/tool.hpp"

namespace autopar::tool {

int check_instance(const CheckArguments& arguments, std::ostream& out) {
  InstanceTarget target;
  if (arguments.devices > 0) target.devices = static_cast<int>(arguments.devices);
  if (arguments.memory > 0) target.memory = arguments.memory;
  if (arguments.bandwidth > 0) target.bandwidth = arguments.bandwidth;
  const PlanningInstance instance = parse_instance(read_text_file(arguments.profile), arguments.profile, target);
  const VariantTables tables = make_tables(instance.graph, instance.costs, instance.limits);
  BottleneckCertificate claim;
  claim.stages = parse_stages(read_text_file(arguments.plan), arguments.plan, tables);
  claim.seconds = slowest_stage(tables, claim.stages);
  claim.lower_bound = arguments.lower_bound;
  const CertificateVerdict verdict = check_certificate(tables, claim);
  const bool bounded = verdict.accepted && std::isfinite(verdict.gap);
  if (arguments.json) {
    nlohmann::ordered_json json{
        {"accepted", verdict.accepted}, {"objective", claim.seconds}, {"reason", verdict.reason}};
    if (bounded) json["gap"] = verdict.gap;
    out << json.dump() << '\n';
  } else {
    out << (verdict.accepted ? "accepted" : "rejected: " + printable_line(verdict.reason)) << '\n';
    if (verdict.accepted) out << "slowest stage: " << detail::formatted("%.12g", claim.seconds) << " s\n";
    if (bounded) out << "no plan is below the bound; gap " << gap_percent(verdict.gap, 4) << '\n';
  }
  return verdict.accepted ? kDone : kNo;
}

}  // namespace autopar::tool
