#include "torch/placement/program_partitioner.hpp"

#include <limits>
#include <string>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/plan/report/runnable.hpp>

#include "capture/algebra/parameter_reads.hpp"
#include "capture/ir/shown_name.hpp"
#include "torch/ranks/collective_try.hpp"
#include "torch/staging/staged_graph.hpp"

namespace autopar::placement {

namespace {

/// By ValueId: the ranks that hold a parameter, ascending.
std::vector<std::vector<Rank>> holders_in(const OpGraph& graph, const parameters::ParameterStore& parameters) {
  std::vector<std::vector<Rank>> holders(graph.values.size());
  for (const auto& [name, value] : graph.parameters) holders[value.index()] = parameters.named(name).holders;
  return holders;
}

}  // namespace

std::vector<std::vector<StageId>> homes_in(const OpGraph& graph, const parameters::ParameterStore& parameters) {
  std::vector<std::vector<StageId>> homes(graph.values.size());
  for (const auto* leaves : {&graph.parameters, &graph.buffers}) {
    for (const auto& [name, value] : *leaves) homes[value.index()] = parameters.named(name).stages;
  }
  return homes;
}

std::vector<StageId> ProgramPartitioner::partition_planned(programs::CapturedProgram& program,
                                                           const cost::GraphProfile& profile) {
  planned_hash_ = program.captured.hash();
  planned_atoms_ = profile.atoms;
  ranks::collective_try(ranks_, "slicing parameters", [&] { slice_parameters(program, profile); });
  std::vector<StageId> stage_of;
  ranks::collective_try(ranks_, "dividing the model", [&] {
    segments_ = staging::PlannedSegments(deployment_.plan(), program.graph, planned_atoms_);
    stage_of = divide(program, planned_atoms_);
  });
  return stage_of;
}

void ProgramPartitioner::partition(programs::CapturedProgram& program) {
  cost::AtomPartition atoms;
  ranks::collective_try(ranks_, "profiling the model", [&] {
    atoms = program.captured.hash() == planned_hash_ ? planned_atoms_
                                                     : cost::partition_into_atoms(program.graph, program.plan);
  });
  ranks::collective_try(ranks_, "dividing the model", [&] { static_cast<void>(divide(program, std::move(atoms))); });
}

std::vector<StageId> ProgramPartitioner::divide(programs::CapturedProgram& program, cost::AtomPartition atoms) {
  auto stage_of = stages_of_ops(program, atoms);
  require_whole_batches(program, stage_of);
  auto& partition = program.partition;
  partition.recomputed = segments_.in(program.graph, atoms);
  shard_program(program, stage_of, atoms);
  staging::StageMap stages{stage_of, {}, {}};
  for (const auto& stage : deployment_.plan().stages) stages.meshes.push_back(stage.mesh);
  stages = staging::cut_at_collectives(program.graph, program.plan, atoms, stages);
  partition.parts = stages.parts;
  partition.staged = staging::divide(program.graph, program.plan, stages, ranks_.size());
  describe_shards(program);
  return stage_of;
}

void ProgramPartitioner::share_parameters(programs::CapturedProgram& program) const {
  ranks::collective_try(ranks_, "sharing parameters", [&] {
    auto& staged = program.partition.staged;
    staging::include_holders(staged, program.graph, holders_in(program.graph, parameters_));
    if (parameters_.units().empty()) return;
    const auto sharded = sharded_parameters(program);
    staging::shard_groups(staged, program.graph, program.plan, sharded);
    if (parts_backwards(deployment_.plan())) return;
    // As plans are costed: of a synthesised one as if it parted its backwards.
    const auto kept = keeps_backwards_whole(deployment_.plan().schedule)
                          ? kKeptForBackward
                          : Bytes(std::numeric_limits<std::int64_t>::max());
    staging::order_backward_gathers(staged, program.graph, program.plan, sharded, program.partition.recomputed, kept);
  });
}

cost::AtomPartition ProgramPartitioner::planned_atoms(const programs::CapturedProgram& program) const {
  const auto& partition = program.partition;
  return partition.tensor_stages.empty() ? planned_atoms_
                                         : cost::with_operators(planned_atoms_, partition.sharded.made_for);
}

std::vector<StageId> ProgramPartitioner::stages_of_ops(const programs::CapturedProgram& program,
                                                       const cost::AtomPartition& atoms) const {
  if (program.captured.hash() == planned_hash_) {
    std::vector<StageId> stage_of(program.graph.ops.size());
    for (std::size_t s = 0; s < deployment_.plan().stages.size(); ++s) {
      for (const auto op : deployment_.plan().stages[s].ops) stage_of.at(static_cast<std::size_t>(op)) = StageId::of(s);
    }
    return stage_of;
  }
  return staging::place_by_parameters(program.graph, program.plan, atoms, homes_in(program.graph, parameters_),
                                      static_cast<int>(deployment_.plan().stages.size()));
}

void ProgramPartitioner::require_whole_batches(const programs::CapturedProgram& program,
                                               const std::vector<StageId>& stage_of) const {
  for (std::size_t i = 0; i < stage_of.size(); ++i) {
    const auto& handling = program.plan.ops[i];
    if (!handling.in_stage || !(handling.whole_batch || handling.collective)) continue;
    const auto replicas = deployment_.plan().stages[stage_of[i].index()].mesh.replicas();
    if (deployment_.plan().microbatches == 1 && (replicas == 1 || handling.collective)) continue;
    if (handling.collective) {
      throw CaptureError(ir::shown_name(program.graph, OpId::of(i)), program.graph.ops[i].path,
                         "with batch_norm = exact it is right with one micro-batch only, but the plan has " +
                             std::to_string(deployment_.plan().microbatches) +
                             "; set microbatches = 1, or batch_norm = microbatch");
    }
    throw CaptureError(
        ir::shown_name(program.graph, OpId::of(i)), program.graph.ops[i].path,
        handling.reason + "; it is exact with one micro-batch and one replica only, but the plan has " +
            std::to_string(deployment_.plan().microbatches) + " micro-batches and " + std::to_string(replicas) +
            " replicas of its stage; set microbatches = 1 and replicas to 1 for it, or leave both to the "
            "planner");
  }
}

staging::ShardedParameters ProgramPartitioner::sharded_parameters(const programs::CapturedProgram& program) const {
  staging::ShardedParameters sharded{parameters_.units(), std::vector<std::vector<int>>(program.graph.values.size())};
  const auto whole = algebra::read_outside_stages(program.graph, program.plan);
  const auto leaving =
      algebra::read_after_computes(program.graph, program.plan, program.partition.staged.channel_values);
  const auto reads = algebra::parameter_reads(program.graph, program.plan);
  for (const auto& [name, value] : program.graph.parameters) {
    const auto& tensor = parameters_.named(program.graph.value(value).name);
    if (parameters_.is_sharded(tensor)) sharded.units_of[value.index()] = tensor.units;
    const auto* unit = parameters_.unit_of(tensor);
    const bool in_computes = unit != nullptr && unit->zero >= 3;
    if (in_computes && leaving[value.index()] && program.graph.value(value).requires_grad) {
      throw InvalidArgument("parameter '" + name +
                            "' is gathered within compute actions (ZeRO 3), but a later mode or signature of the " +
                            "model reads it elsewhere; call the model in this mode first, or set zero = 2");
    }
    parameters_.require_readable(tensor, reads[value.index()]);
    if (unit == nullptr || !whole[value.index()]) continue;
    if (!parameters_.is_sharded(tensor)) {
      throw InvalidArgument(
          "parameter '" + name + "' is kept in host memory (offload), but a later mode or signature of the " +
          "model needs it outside the pipeline; call the model in this mode first, or set offload = none");
    }
    throw InvalidArgument("parameter '" + name +
                          "' is held in shards (ZeRO), but a later mode or signature of the model " +
                          "needs it whole outside the pipeline; call the model in this mode first, or set zero = 0");
  }
  return sharded;
}

}  // namespace autopar::placement
