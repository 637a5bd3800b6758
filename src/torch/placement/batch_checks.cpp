#include "torch/placement/batch_checks.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/plan/text.hpp>
#include <autopar/plan/verify/costs.hpp>
#include <autopar/plan/verify/ledger.hpp>
#include <autopar/plan/verify/stated_plan.hpp>

#include "torch/cost/held_beside.hpp"
#include "torch/cost/profile.hpp"
#include "torch/planning/batch_statistics.hpp"

namespace autopar::placement {

namespace {

/// The plan with another program's atoms in its stages.
Plan with_program(Plan plan, const programs::CapturedProgram& program, const cost::GraphProfile& profile,
                  std::int64_t batch) {
  std::vector<std::size_t> stage_of(program.graph.ops.size());
  for (std::size_t stage = 0; stage < program.partition.parts.size(); ++stage) {
    for (const auto part : program.partition.parts[stage]) {
      for (const auto op : program.partition.staged.stage_ops[part.index()]) stage_of[op.index()] = stage;
    }
  }
  plan.batch = batch;
  for (auto& stage : plan.stages) {
    stage.atoms.clear();
    stage.recomputed.clear();
    stage.parameters.clear();
  }
  std::map<int, std::vector<NodeId>> segments;
  const auto& again = program.partition.recomputed;
  for (std::size_t atom = 0; atom < profile.atoms.atoms.size(); ++atom) {
    const auto op = profile.atoms.atoms[atom].front();
    StagePlan& stage = plan.stages[stage_of[op.index()]];
    stage.atoms.push_back(NodeId::of(atom));
    const auto& read = profile.model.graph[NodeId::of(atom)].parameters;
    stage.parameters.insert(stage.parameters.end(), read.begin(), read.end());
    const auto known = again.segment_of.empty() ? NodeId::none() : again.atom_of[op.index()];
    if (known.valid() && again.segment_of[known.index()] >= 0)
      segments[again.segment_of[known.index()]].push_back(NodeId::of(atom));
  }
  for (auto& stage : plan.stages) {
    std::ranges::sort(stage.parameters);
    stage.parameters.erase(std::ranges::unique(stage.parameters).begin(), stage.parameters.end());
  }
  for (const auto& [segment, atoms] : segments) {
    const auto op = profile.atoms.atoms[atoms.front().index()].front();
    plan.stages[stage_of[op.index()]].recomputed.push_back(atoms);
  }
  return plan;
}

}  // namespace

// libtorch refuses a statistic of one value, with sizes of a slice that the user has never seen.
void BatchChecks::require_statistics(const programs::CapturedProgram& program, const BatchLayout& layout) const {
  const auto& division = program.partition.staged;
  std::optional<BatchSplit> split;
  for (std::size_t s = 0; s < division.stage_ops.size(); ++s) {
    for (const auto op : division.stage_ops[s]) {
      if (!planning::needs_two_samples(program.plan, op)) continue;
      if (!split) split.emplace(division.pipeline, layout);
      for (int m = 0; m < layout.microbatches; ++m) {
        for (int q = 0; q < division.pipeline.stages[s].replicas(); ++q) {
          if (split->slice(StageId::of(s), q, m).size() != 1) continue;
          const auto batch = std::accumulate(layout.local.begin(), layout.local.end(), std::int64_t{0});
          throw InvalidArgument(
              "batch norm '" + program.graph.op(op).path +
              "' normalises by the samples of a micro-batch on a replica, and " + "with a batch of " +
              std::to_string(batch) + " samples, microbatches = " + std::to_string(layout.microbatches) + " and " +
              std::to_string(division.pipeline.stages[s].replicas()) +
              " replicas of its stage some have one sample, of which there is no variance: bring more samples, set "
              "microbatches or replicas to fewer, or set batch_norm = exact, which takes the whole batch");
        }
      }
    }
  }
}

// Of what is run, which the plan need not have been made of; once.
void BatchChecks::warn_of_batch_statistics(const programs::CapturedProgram& program, std::int64_t batch) {
  if (warned_of_statistics_) return;
  std::set<std::int64_t> samples;
  const auto& division = program.partition.staged;
  for (std::size_t s = 0; s < division.stage_ops.size(); ++s) {
    const auto& ops = division.stage_ops[s];
    if (std::any_of(ops.begin(), ops.end(), [&](OpId op) { return program.plan.normalises_by_slice(op); }))
      samples.insert(
          planning::samples_of_slice(batch, deployment_.plan().microbatches, division.pipeline.stages[s].replicas()));
  }
  const auto text = planning::describe_batch_statistics(samples, batch);
  if (text.empty()) return;
  warned_of_statistics_ = true;
  if (ranks_.is_first()) ranks_.logger(LogModule::kSession).warn(text + ", as one process does");
}

// Of rank 0, which knows the devices. What is predicted may be too much: it warns, and the call goes on.
void BatchChecks::check_memory(programs::CapturedProgram& program, std::int64_t batch, bool recorded) const {
  if (batch <= program.checked_batch) return;
  program.checked_batch = batch;
  if (!ranks_.is_first() || deployment_.plan().device_memory == Bytes(0)) return;
  const auto singles = deployment_.plan().layers_by_inputs ? tensor_parallel::SingleLayers::kByInputs
                                                           : tensor_parallel::SingleLayers::kByOutputs;
  auto profile = cost::profile_graph(program.graph, program.plan, deployment_.device().type(), {}, singles);
  const bool trains = std::any_of(program.plan.outputs.begin(), program.plan.outputs.end(),
                                  [](const algebra::OutputPlan& output) { return output.differentiable; });
  profile.model.held_beside = cost::held_beside(profile.model, deployment_.device().type(), recorded);
  profile.model.loss_mode = profile.model.loss_mode || !trains;  // nothing stays for a backward
  const auto plan = with_program(deployment_.plan(), program, profile, batch);
  const auto cluster = describe_cluster_();
  const ProfiledCost costs(cluster, {}, Bytes(1));
  const verify::StatedPlan stated(profile.model, plan);
  const verify::StatedCosts<ProfiledCost> stated_costs(stated, costs);
  const auto peaks = verify::Ledger<ProfiledCost>(stated, stated_costs).peaks();
  for (std::size_t stage = 0; stage < peaks.size(); ++stage) {
    if (peaks[stage] <= plan.device_memory) continue;
    ranks_.logger(LogModule::kSession)
        .warn("a call with " + std::to_string(batch) + " samples needs about " + readable(peaks[stage]) +
              " on a rank of stage " + std::to_string(stage) + ", which has " + readable(plan.device_memory) +
              ": the plan was made for " + std::to_string(deployment_.plan().batch) +
              " samples, and maybe for another mode or other arguments; bring fewer samples a "
              "call, or make the first call, or prepare(args...), with what takes most");
    return;
  }
}

}  // namespace autopar::placement
