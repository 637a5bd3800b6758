#include "torch/placement/deployer.hpp"

#include <string>
#include <utility>
#include <vector>

#include <autopar/plan/report/runnable.hpp>

#include "capture/algebra/parameter_reads.hpp"
#include "torch/planning/fp8_choice.hpp"
#include "torch/ranks/collective_try.hpp"

namespace autopar::placement {

namespace {

std::vector<parameters::ShardedGroup> sharded_groups(const staging::StagedGraph& division,
                                                     const parameters::ParameterStore& parameters) {
  std::vector<parameters::ShardedGroup> groups;
  for (const int unit : division.group_units) {
    auto& group = groups.emplace_back();
    if (unit < 0) continue;
    group.memory = parameters.memories()[static_cast<std::size_t>(unit)];
    group.unit = &parameters.units()[static_cast<std::size_t>(unit)];
  }
  return groups;
}

void tell_optimizers(const Logger& log, const std::vector<torch::optim::Optimizer*>& optimizers) {
  if (!log.enabled(LogLevel::kDebug)) return;
  for (const auto* optimizer : optimizers) {
    std::size_t parameters = 0;
    for (const auto& group : optimizer->param_groups()) parameters += group.params().size();
    log.debug("an attached optimizer steps " + std::to_string(parameters) + " parameters in " +
              std::to_string(optimizer->param_groups().size()) + " groups");
  }
}

/// What this rank has to do in the plan's schedule.
void tell_schedule(const Logger& log, const Plan& plan, Rank rank) {
  if (!log.enabled(LogLevel::kDebug)) return;
  std::string stages;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const auto& mesh = plan.stages[i].mesh;
    if (!mesh.contains(rank)) continue;
    stages += (stages.empty() ? "" : ", ") + std::to_string(i) + " (replica " +
              std::to_string(mesh.replica_of(rank).value_or(0)) + " of " + std::to_string(mesh.replicas()) + ")";
  }
  log.debug("schedule " + name_of(plan.schedule) + ", " + std::to_string(plan.microbatches) + " micro-batches; of " +
            std::to_string(plan.stages.size()) + " stages this rank runs " + (stages.empty() ? "none" : stages));
}

}  // namespace

void Deployer::place(const programs::PlannedModes& modes, const cost::GraphProfile& profile) {
  auto& program = *modes.planned;
  auto& ranks = parts_.ranks;
  auto& parameters = parts_.parameters;
  auto& deployment = parts_.deployment;
  const auto stage_of = partitioner_.partition_planned(program, profile);
  deployment.start();
  placer_.place(program, stage_of, modes.others);
  for (const auto& tensor : parameters.tensors()) {
    static_cast<void>(deployment.group_of(tensor.holders));
    for (const auto& replicas : tensor.replicas_of_shard) static_cast<void>(deployment.group_of(replicas));
  }
  ranks::collective_try(ranks, "checking optimizers",
                        [&] { parts_.optimizers.require_for(deployment.plan(), parts_.options.inference); });
  placer_.add_units(program, partitioner_.planned_atoms(program));
  start_fp8_layers(program, profile);
  ranks::collective_try(ranks, "looking for parameters of other models", [&] { parameters.require_unshared(); });
}

std::uint64_t Deployer::make_values(const programs::CapturedProgram& planned) {
  auto& parameters = parts_.parameters;
  const auto device = parts_.deployment.device();
  const auto seed = placer_.make_values();
  parameters.hold_slices(parts_.init, device);
  parameters.hold_shards(parts_.init, device);
  parameters.mark_handles();
  keep_copies(planned);
  deployed_ = true;
  ranks::collective_try(parts_.ranks, "fitting optimizers", [&] { parts_.optimizers.fit_all(); });
  tell_optimizers(parts_.ranks.logger(LogModule::kOptimizer), parts_.optimizers.all());
  parts_.watches.start(device);
  if (parts_.init != nullptr) parts_.init->forget_states();
  return seed;
}

// Units have copies of their own.
void Deployer::keep_copies(const programs::CapturedProgram& program) {
  const auto reads = algebra::parameter_reads(program.graph, program.plan);
  for (const auto& [name, value] : program.graph.parameters) {
    const auto& tensor = parts_.parameters.named(name);
    if (!tensor.units.empty() || !parts_.parameters.holds(tensor)) continue;
    const auto copy = reads[value.index()].smaller_copy(tensor.handle.scalar_type());
    if (copy) parts_.parameters.keep_copy(tensor, *copy);
  }
}

void Deployer::prepare(programs::CapturedProgram& program) {
  const bool is_divided = !program.partition.parts.empty();
  if (!is_divided) partitioner_.partition(program);
  partitioner_.share_parameters(program);
  build_runtime(program);
  make_groups(program);
  const auto& pipeline = program.partition.staged.pipeline;
  parts_.deployment.connect(pipeline);
  tell_schedule(parts_.ranks.logger(LogModule::kSchedule), parts_.deployment.plan(), parts_.ranks.rank());
  parts_.ranks.logger(LogModule::kExecutor)
      .debug("ready to run on " + parts_.deployment.device().str() + ", with " +
             std::to_string(pipeline.channels.size()) + " channels of messages and " +
             std::to_string(pipeline.groups.size()) + " groups of sums among all ranks");
}

void Deployer::start_fp8_layers(const programs::CapturedProgram& planned, const cost::GraphProfile& profile) {
  if (parts_.options.precision != Precision::kFp8) return;
  const auto device = parts_.deployment.device();
  parts_.fp8.start(profile.in_8_bits, device);
  if (!parts_.ranks.is_first()) return;
  // As tensor shards have cut them.
  const auto choice = planning::chosen_fp8_layers(parts_.options, device, planned.runnable(), planned.plan);
  const auto log = parts_.ranks.logger(LogModule::kSession);
  log.info("fp8: products of " + std::to_string(choice.weights.size()) + " linear layers run in 8 bits");
  for (const auto& [weight, reason] : choice.left_out) log.info("fp8: '" + weight + "' stays in bf16: " + reason);
}

void Deployer::build_runtime(programs::CapturedProgram& program) {
  auto& parameters = parts_.parameters;
  const auto& plan = parts_.deployment.plan();
  const auto device = parts_.deployment.device();
  const auto& staged = program.partition.staged;
  const auto lookup = [&parameters, &graph = program.graph](ValueId leaf) { return parameters.handle_of(graph, leaf); };
  const auto compute = [&parameters, &graph = program.graph](ValueId leaf) {
    return parameters.compute_memory(graph.value(leaf).name);
  };
  const auto copy = [&parameters, &graph = program.graph](ValueId leaf) {
    return parameters.compute_copy(graph.value(leaf).name);
  };
  ranks::collective_try(parts_.ranks, "preparing the stages", [&] {
    auto& runtime = program.runtime;
    runtime.stages = std::make_unique<engine::RankRuntime>(
        program.runnable(), program.plan, staged, parts_.ranks.rank(), device,
        engine::Stage::Leaves{lookup, compute, copy, &parts_.fp8}, parts_backwards(plan), program.partition.recomputed,
        sharded_groups(staged, parameters), plan.buckets);
    runtime.prologue = std::make_unique<programs::Prologue>(program.graph, program.plan, device, lookup);
    runtime.epilogue = std::make_unique<programs::Epilogue>(program.graph, program.plan, device);
    std::vector<const algebra::BufferUpdate*> held;
    for (const auto& update : program.plan.buffer_updates) {
      const bool here = parameters.holds(parameters.named(program.graph.value(update.buffer).name));
      if (here && update.kind == algebra::BufferUpdateKind::kReplicated) held.push_back(&update);
    }
    runtime.replicated_updates =
        std::make_unique<programs::ReplicatedUpdates>(program.graph, program.plan, held, device, lookup);
  });
}

void Deployer::make_groups(programs::CapturedProgram& program) {
  auto& deployment = parts_.deployment;
  auto& runtime = program.runtime;
  const auto& pipeline = program.partition.staged.pipeline;
  for (const auto& group : pipeline.groups) {
    runtime.groups.push_back(deployment.group_of(group.ranks));
    const bool gathers_apart = group.zero >= 3;
    runtime.gather_groups.push_back(gathers_apart ? deployment.gather_group_of(group.ranks) : runtime.groups.back());
  }
  for (const auto& mesh : pipeline.stages) {
    auto& own = runtime.tensor_groups.emplace_back();
    if (mesh.tensor() == 1) continue;
    for (int q = 0; q < mesh.replicas(); ++q) {
      const auto ranks = mesh.tensor_group(q);
      const auto group = deployment.tensor_group_of({ranks.begin(), ranks.end()});
      if (mesh.replica_of(parts_.ranks.rank()) == q) own = group;
    }
  }
}

}  // namespace autopar::placement
