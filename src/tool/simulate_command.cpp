#include <ostream>

#include <nlohmann/json.hpp>

#include <autopar/core/printable.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/trace_file.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/plan/report/step_timeline.hpp>

#include "commands.hpp"
#include "tool.hpp"

namespace autopar::tool {

namespace {

std::vector<TraceEvent> events_of(const StepTimeline& timeline) {
  std::vector<TraceEvent> events;
  for (const Bar& bar : timeline.bars) {
    const std::string lane = computes(bar.kind)                 ? "compute"
                             : bar.kind == BarKind::kCollective ? "gradient sums"
                                                                : name_of(bar.kind);
    events.push_back({bar.rank, lane, bar.what, bar.begin, bar.end, category_of(bar.kind)});
  }
  return events;
}

std::string title_of(const Plan& plan, const StepTimeline& timeline) {
  return describe(plan) + ": " + readable(timeline.step) + " a step, " + std::to_string(plan.world) + " x " +
         printable_line(plan.device) + ", batch " + std::to_string(plan.batch);
}

void print_json(const StepTimeline& timeline, std::ostream& out) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (std::size_t r = 0; r < timeline.busy.size(); ++r) {
    ranks.push_back({{"rank", r},
                     {"stages", timeline.stages[r]},
                     {"busy_s", timeline.busy[r].value()},
                     {"waiting", timeline.waiting(Rank::of(r))}});
  }
  out << nlohmann::ordered_json{{"step_s", timeline.step.value()}, {"ranks", std::move(ranks)}}.dump() << '\n';
}

void print_table(const Plan& plan, const StepTimeline& timeline, std::ostream& out) {
  out << title_of(plan, timeline) << '\n';
  std::vector<std::vector<std::string>> rows{{"rank", "runs", "computes", "waits"}};
  for (std::size_t r = 0; r < timeline.busy.size(); ++r) {
    rows.push_back({std::to_string(r), stages_of(timeline, Rank::of(r)), readable(timeline.busy[r]),
                    percent(timeline.waiting(Rank::of(r)))});
  }
  out << aligned_table(rows);
}

}  // namespace

int simulate_command(const SimulateArguments& arguments, std::ostream& out) {
  const Plan plan = read_plan(arguments.plan);
  const ModelProfile profile = load_profile(arguments.profile);
  const Cluster cluster = read_cluster(arguments.cluster);
  require_same(plan, profile, cluster);
  const StepTimeline timeline =
      timeline_of(plan, profile, ProfiledCost(at_precision(cluster, plan.precision), load_costs(arguments.costs)));
  const Overwrite overwrite = arguments.force ? Overwrite::kAny : Overwrite::kOwn;
  if (!arguments.trace.empty()) write_chrome_trace(arguments.trace, events_of(timeline), plan.model, overwrite);
  if (arguments.json)
    print_json(timeline, out);
  else
    print_table(plan, timeline, out);
  return kDone;
}

}  // namespace autopar::tool
