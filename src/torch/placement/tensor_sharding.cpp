// Stages with several tensor shards: which parameters they hold in slices, and the program that one shard runs.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/plan/model/tensor_shards.hpp>

#include "capture/ir/shown_name.hpp"
#include "torch/placement/program_partitioner.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

namespace autopar::placement {

namespace {

bool has_tensor_shards(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [](const auto& stage) { return stage.mesh.tensor() > 1; });
}

template <class Of>
std::vector<Of> with_moves(const std::vector<Of>& by_op, const std::vector<OpId>& made_for) {
  std::vector<Of> out;
  for (const auto op : made_for) out.push_back(by_op[op.index()]);
  return out;
}

}  // namespace

/// Once, for the program that was planned: what a stage with shards holds of the regions that it has whole.
void ProgramPartitioner::slice_parameters(const programs::CapturedProgram& program, const cost::GraphProfile& profile) {
  if (!has_tensor_shards(deployment_.plan())) return;
  const auto shards = region_shards_of(profile.model, deployment_.plan());
  for (std::size_t r = 0; r < shards.size(); ++r) {
    if (shards[r] == 1) continue;
    for (const auto& [leaf, slices] : profile.region_slices[r])
      parameters_.named(program.graph.value(leaf).name).slices = slices;
  }
}

/// Of a stage, the leaves that its shards hold in slices. @throws CaptureError if an operator elsewhere reads one
tensor_parallel::LeafSlices ProgramPartitioner::slices_in(const programs::CapturedProgram& program,
                                                          const std::vector<StageId>& stage_of, StageId stage) const {
  tensor_parallel::LeafSlices leaves;
  for (std::size_t i = 0; i < program.graph.ops.size(); ++i) {
    const auto op = OpId::of(i);
    for_each_input(program.graph.op(op), [&](ValueId value) {
      const auto& info = program.graph.value(value);
      if (info.kind != ValueKind::kParameter) return;
      const auto& tensor = parameters_.named(info.name);
      if (!tensor.slices) return;
      const auto& handling = program.plan.handling(op);
      if (!handling.in_stage && !handling.in_prologue && !handling.in_epilogue) return;
      if (handling.in_stage && stage_of[i] == stage) {
        leaves.emplace(value, *tensor.slices);
      } else if (!handling.in_stage) {
        throw CaptureError(ir::shown_name(program.graph, op), program.graph.op(op).path,
                           "in this mode or with these arguments it reads parameter '" + info.name +
                               "' whole, outside the pipeline, but tensor shards have a slice of it each; make the "
                               "first call in this mode, or set tensor_parallel = 1");
      }
    });
  }
  return leaves;
}

void ProgramPartitioner::shard_program(programs::CapturedProgram& program, std::vector<StageId>& stage_of,
                                       cost::AtomPartition& atoms) {
  if (!has_tensor_shards(deployment_.plan())) return;
  std::vector<tensor_parallel::ShardedStage> stages;
  for (std::size_t s = 0; s < deployment_.plan().stages.size(); ++s) {
    const int shards = deployment_.plan().stages[s].mesh.tensor();
    if (shards == 1) continue;
    const auto stage = StageId::of(s);
    tensor_parallel::ShardTyping typing(
        program.graph, [&](OpId op) { return program.plan.handling(op).in_stage && stage_of[op.index()] == stage; });
    auto layout = typing.run(
        slices_in(program, stage_of, stage), [](ValueId) { return false; },
        deployment_.plan().sequence_parallel ? shards : 1);
    if (layout.stale.valid()) {
      const auto maker = program.graph.value(layout.stale).definer;
      throw CaptureError(maker.valid() ? ir::shown_name(program.graph, maker) : program.graph.value(layout.stale).name,
                         maker.valid() ? program.graph.op(maker).path : std::string(),
                         "tensor shards have its result in slices, and an operator without a rule for slices writes "
                         "into it; write into a copy, or set tensor_parallel = 1");
    }
    program.partition.tensor_stages.push_back(stage);
    stages.push_back({shards, std::move(layout)});
  }
  program.partition.sharded = tensor_parallel::insert_moves(program.graph, stages);
  program.graph = program.partition.sharded.graph;
  program.plan = algebra::analyze_batch(program.graph, planning::algebra_options(options_));
  const auto& made_for = program.partition.sharded.made_for;
  stage_of = with_moves(stage_of, made_for);
  atoms = cost::with_operators(atoms, made_for);
  if (!program.partition.recomputed.atom_of.empty())
    program.partition.recomputed.atom_of = with_moves(program.partition.recomputed.atom_of, made_for);
}

void ProgramPartitioner::describe_shards(programs::CapturedProgram& program) const {
  auto& division = program.partition.staged;
  if (program.partition.tensor_stages.empty()) return;
  division.shard_steps = program.partition.sharded.steps;
  for (const auto& [value, sliced] : program.partition.sharded.slices) {
    const auto& info = program.graph.value(value);
    if (info.kind != ValueKind::kParameter) continue;
    auto& sizes = division.parameter_slices[value];
    for (int shard = 0; shard < sliced.shards; ++shard)
      sizes.push_back(
          parameters::sliced_sizes(sliced.slices, parameters_.named(info.name).sizes, sliced.shards, shard));
  }
  std::vector<std::optional<int>> places;
  for (const auto stage : program.partition.tensor_stages)
    places.push_back(deployment_.plan().stages[stage.index()].mesh.shard_of(ranks_.rank()));
  program.partition.own_graph = tensor_parallel::on_shard(program.partition.sharded, places);
}

}  // namespace autopar::placement
