#include <autopar/plan/report/run_report.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/plan/text.hpp>
#include <autopar/plan/verify/shape.hpp>

#include "planner/placed_plan.hpp"

namespace autopar {

namespace {

constexpr std::int64_t kMostSlices = 1 << 18;  // micro-batches x ranks that are simulated for a report
constexpr double kSameStep = 0.01;             // part of the step by which two predictions of it may differ

std::string module_of_parameter(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

std::vector<ReportedAtom> atoms_of(const Plan& plan, const ModelProfile& profile,
                                   const std::vector<std::string>& modules) {
  std::vector<ReportedAtom> out(profile.graph.node_count());
  std::vector<bool> counted(profile.parameters.size(), false);
  std::set<std::string_view> parameters;
  for (const ParameterProfile& parameter : profile.parameters) parameters.insert(parameter.name);
  for (const NodeId node : profile.graph.nodes()) {
    const OpProfile& op = profile.graph[node];
    ReportedAtom& atom = out[node.index()];
    const auto first = op.ops.empty() ? -1 : op.ops.front();
    const bool has_module = first >= 0 && static_cast<std::size_t>(first) < modules.size();
    atom.path = has_module                     ? modules[static_cast<std::size_t>(first)]
                : parameters.contains(op.path) ? module_of_parameter(op.path)
                                               : op.path;
    atom.name = op.name;
    atom.operators = std::max<std::int64_t>(1, static_cast<std::int64_t>(op.ops.size()));
    for (const ParameterId parameter : op.parameters) {
      if (!parameter.valid() || parameter.index() >= counted.size() || counted[parameter.index()]) continue;
      counted[parameter.index()] = true;
      atom.parameters += profile.parameters[parameter.index()].bytes;
    }
  }
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const NodeId node : plan.stages[s].atoms) out[node.index()].stage = static_cast<int>(s);
    for (const auto& segment : plan.stages[s].recomputed) {
      for (const NodeId node : segment) out[node.index()].recomputed = true;
    }
  }
  return out;
}

/// Exchanges of tensor shards and of ZeRO are left out: no atom alone causes them.
void add_seconds(std::vector<ReportedAtom>& atoms, const PlacedPlan& placed) {
  const SliceTable slices(placed.constraints);
  const auto sizes = largest_slices(placed.staging, slices);
  for (std::size_t node = 0; node < atoms.size(); ++node) {
    ReportedAtom& atom = atoms[node];
    const NodeCost& cost = placed.work.node_costs(sizes[static_cast<std::size_t>(atom.stage)])[node];
    const Seconds again = atom.recomputed ? cost.forward : Seconds{};
    atom.seconds = (cost.forward + cost.backward + again) * placed.plan.microbatches;
  }
}

std::int64_t slices_of(const Plan& plan) {
  std::int64_t ranks = 0;
  for (const StagePlan& stage : plan.stages) ranks += static_cast<std::int64_t>(stage.mesh.ranks().size());
  return ranks * plan.microbatches;
}

void add_comparison(std::vector<Comparison>& out, const std::string& what, Seconds predicted, Seconds measured) {
  if (predicted > Seconds{} && measured > Seconds{})
    out.push_back({what, readable(predicted), readable(measured), measured / predicted - 1});
}

/// Mean seconds of the compute actions of a rank, by kind and stage. What messages and sums take as measured includes
/// waiting for other ranks.
std::map<std::pair<BarKind, int>, Seconds> means_of(const std::vector<Bar>& bars, Rank rank) {
  std::map<std::pair<BarKind, int>, std::pair<Seconds, int>> sums;
  for (const Bar& bar : bars) {
    if (bar.rank != rank || !computes(bar.kind)) continue;
    auto& [sum, count] = sums[{bar.kind, bar.stage.valid() ? bar.stage.value() : -1}];
    sum += bar.end - bar.begin;
    ++count;
  }
  std::map<std::pair<BarKind, int>, Seconds> out;
  for (const auto& [key, one] : sums) out[key] = one.first / one.second;
  return out;
}

}  // namespace

RunReport make_run_report(Plan plan, const ModelProfile& profile, const ProfiledCost* costs,
                          const std::vector<std::string>& modules) {
  const auto fault = verify::fault_in_shape(profile, plan);
  if (!fault.empty()) throw InvalidArgument("the plan does not divide this model: " + fault);
  RunReport report;
  report.plan = std::move(plan);
  report.atoms = atoms_of(report.plan, profile, modules);
  if (costs == nullptr) {
    report.notes.push_back("what actions take is not known here: no timeline, no memory over the step");
    return report;
  }
  if (slices_of(report.plan) > kMostSlices) {
    report.notes.push_back("a step of " + readable_count(slices_of(report.plan)) +
                           " slices of micro-batches is more than a page shows: no timeline, no memory over the step");
    return report;
  }
  report.timeline = timeline_of(report.plan, profile, *costs);
  report.memory = memory_over_step(report.plan, profile, *costs, report.timeline);
  report.advice = advice_without_search(report.plan, profile, *costs, report.timeline);
  add_seconds(report.atoms, PlacedPlan(report.plan, profile, *costs));
  const Seconds drawn = report.timeline.step, stated = report.plan.step;
  if (stated > Seconds{} && std::abs(drawn / stated - 1) > kSameStep)
    report.notes.push_back("the plan states a step of " + readable(stated) + "; with the costs at hand it takes " +
                           readable(drawn) + ", and so the timeline shows it");
  return report;
}

RunReport plan_alone(Plan plan) {
  RunReport report;
  report.plan = std::move(plan);
  report.notes.push_back(
      "made from the plan alone: give the profile and the cluster as well for the model, the "
      "timeline, the memory and advice");
  return report;
}

void set_measured(RunReport& report, MeasuredRun measured_run) {
  const MeasuredRun& run = report.measured.emplace(std::move(measured_run));
  auto& out = report.comparisons;
  out.clear();
  const std::size_t r = run.rank.index();
  add_comparison(out, "step, call to call", report.plan.step, run.step);
  Seconds updating{};
  Bytes peak{};
  for (const Bar& bar : report.timeline.bars) {
    if (bar.rank == run.rank && bar.kind == BarKind::kUpdate) updating += bar.end - bar.begin;
  }
  if (report.timeline.step > updating)
    add_comparison(out, "forward and backward", report.timeline.step - updating, run.call);
  for (const StagePlan& stage : report.plan.stages) {
    if (stage.mesh.contains(run.rank)) peak += stage.peak_memory;
  }
  if (peak > Bytes(0) && run.peak_memory > Bytes(0))
    out.push_back({"peak memory of rank " + std::to_string(r), readable(peak), readable(run.peak_memory),
                   run.peak_memory / peak - 1});
  const auto predicted = means_of(report.timeline.bars, run.rank), measured = means_of(run.bars, run.rank);
  for (const auto& [key, seconds] : measured) {
    const auto found = predicted.find(key);
    if (found == predicted.end()) continue;
    const std::string stage = key.second < 0 ? "" : " of stage " + std::to_string(key.second);
    add_comparison(out, name_of(key.first) + stage + ", mean", found->second, seconds);
  }
}

}  // namespace autopar
