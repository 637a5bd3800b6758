// Whether calls fit that the plan was not made for: other modes, other arguments, more samples.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <autopar/cost/precision.hpp>
#include <autopar/plan/check/checked_costs.hpp>
#include <autopar/plan/check/compute_orders.hpp>
#include <autopar/plan/check/held.hpp>
#include <autopar/plan/check/stated_plan.hpp>
#include <autopar/plan/text.hpp>
#include <autopar/torch/device.hpp>

#include "torch/cost/held_beside.hpp"
#include "torch/cost/profile.hpp"
#include "torch/session/session_impl.hpp"

namespace autopar::session {

namespace {

/// The plan with another program's atoms in its stages.
Plan with_program(Plan plan, const CapturedProgram& program, const cost::GraphProfile& profile, std::int64_t batch) {
  std::vector<std::size_t> stage_of(program.graph.ops.size());
  for (std::size_t stage = 0; stage < program.parts.size(); ++stage) {
    for (const auto part : program.parts[stage]) {
      for (const auto op : program.division.stage_ops[part.index()]) stage_of[op.index()] = stage;
    }
  }
  plan.batch = batch;
  for (auto& stage : plan.stages) {
    stage.atoms.clear();
    stage.recomputed.clear();
  }
  std::map<int, std::vector<NodeId>> segments;
  const auto& again = program.recomputed;
  for (std::size_t atom = 0; atom < profile.atoms.atoms.size(); ++atom) {
    const auto op = profile.atoms.atoms[atom].front();
    plan.stages[stage_of[op.index()]].atoms.push_back(NodeId::of(atom));
    const auto known = again.segment_of.empty() ? NodeId::none() : again.atom_of[op.index()];
    if (known.valid() && again.segment_of[known.index()] >= 0)
      segments[again.segment_of[known.index()]].push_back(NodeId::of(atom));
  }
  for (const auto& [segment, atoms] : segments) {
    const auto op = profile.atoms.atoms[atoms.front().index()].front();
    plan.stages[stage_of[op.index()]].recomputed.push_back(atoms);
  }
  return plan;
}

}  // namespace

// Of rank 0, which knows the devices. What is predicted may be too much: it warns, and the call goes on.
void Impl::check_memory(CapturedProgram& program, std::int64_t batch) const {
  if (batch <= program.checked_batch) return;
  program.checked_batch = batch;
  if (world_.rank() != 0 || deployment_.plan().device_memory == Bytes(0)) return;
  const auto singles = deployment_.plan().layers_by_inputs ? tensor_parallel::SingleLayers::kByInputs
                                                           : tensor_parallel::SingleLayers::kByOutputs;
  auto profile = cost::profile_graph(program.graph, program.plan, deployment_.device().type(), {}, singles);
  const bool trains = std::any_of(program.plan.outputs.begin(), program.plan.outputs.end(),
                                  [](const algebra::OutputPlan& output) { return output.differentiable; });
  profile.model.held_beside = cost::held_beside(profile.model, deployment_.device().type(), may_record(program));
  profile.model.loss_mode = profile.model.loss_mode || !trains;  // nothing stays for a backward
  const auto plan = with_program(deployment_.plan(), program, profile, batch);
  const auto cluster = at_precision(describe_cluster(world_, deployment_.device()), options_.precision);
  const ProfiledCost costs(cluster, {}, Bytes(1));
  const detail::StatedPlan stated(profile.model, plan);
  const detail::CheckedCosts<ProfiledCost> checked(stated, costs);
  const auto peaks = detail::CheckedMemory<ProfiledCost>(stated, checked).peaks(detail::compute_orders(stated));
  for (std::size_t stage = 0; stage < peaks.size(); ++stage) {
    if (Bytes(peaks[stage]) <= plan.device_memory) continue;
    log_.warn("a call with " + std::to_string(batch) + " samples needs about " + readable(Bytes(peaks[stage])) +
              " on a rank of stage " + std::to_string(stage) + ", which has " + readable(plan.device_memory) +
              ": the plan was made for " + std::to_string(deployment_.plan().batch) +
              " samples, and maybe for another mode or other arguments; bring fewer samples a "
              "call, or make the first call, or prepare(args...), with what takes most");
    return;
  }
}

}  // namespace autopar::session
