#include "torch/session/session_impl.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>
#include <tuple>
#include <utility>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/plan/report/runnable.hpp>
#include <autopar/torch/device.hpp>

#include "capture/ir/shown_name.hpp"
#include "kernels/all_kernels.hpp"
#include "ops/registry.hpp"
#include "torch/device/device_context.hpp"
#include "torch/device/host_memory.hpp"
#include "torch/fused/pointwise/pointwise.hpp"
#include "torch/parameters/part_mark.hpp"
#include "torch/parameters/whole_handles.hpp"
#include "torch/passes/channels_last.hpp"
#include "torch/passes/pass_list.hpp"
#include "torch/passes/pass_manager.hpp"
#include "torch/planning/plan_builder.hpp"

namespace autopar::session {

namespace {

/// "warn,Planner=debug": a level for all modules, and levels of single ones.
void set_log_levels(Log& log, const std::string& levels) {
  std::istringstream items(levels);
  for (std::string item; std::getline(items, item, ',');) {
    const auto equals = item.find('=');
    const auto level = log_level_named(equals == std::string::npos ? item : item.substr(equals + 1));
    bool known = level.has_value();
    if (known && equals == std::string::npos) log.set_level(*level);
    if (known && equals != std::string::npos) {
      known = false;
      for (int m = 0; m < kLogModules; ++m) {
        if (name_of(static_cast<LogModule>(m)) != item.substr(0, equals)) continue;
        log.set_level(static_cast<LogModule>(m), *level);
        known = true;
      }
    }
    if (!known) {
      throw InvalidArgument("log_level has the part '" + item +
                            "', which is neither a level (trace, debug, info, warn, error, off) nor Module=level");
    }
  }
}

}  // namespace

Impl::Impl(World& world, std::shared_ptr<torch::nn::Module> module, Options code, PlanFunction planner,
           std::shared_ptr<InitRecord> init, std::span<const std::byte> members)
    : world_(world.view()),
      module_(std::move(module)),
      code_(std::move(code)),
      options_(code_),
      files_(world_.logger(LogModule::kSession)),
      planner_(std::move(planner)),
      init_(std::move(init)),
      parameters_(*module_, world.rank_id()),
      deployment_(world_),
      log_(world.logger(LogModule::kSession)),
      members_(*module_, members),
      losses_(world.rank() == 0 ? log_ : Logger()) {
  for (const auto& part : module_->modules()) modules_.push_back(part.get());
  model_number_ = world.count_model();
}

// ---------------------------------------------------------------- options

void Impl::resolve_once() {
  if (resolved_) return;
  ResolvedOptions resolved;
  ranks::collective_try(world_, "resolving options", [&] {
    const auto sources = process_config_sources();
    cache_ = planning::user_cache(sources.cache_folder, world_);
    resolved = resolve_options(code_, sources);
  });
  std::string text;
  const auto described = describe_options(resolved.options);
  for (const auto& [name, value] : described) text += name + " = " + value + "\n";
  const auto texts = world_.all_gather(ranks::blob_of(text), "comparing options");
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const auto other = ranks::text_of(texts[r]);
    if (other == ranks::text_of(texts[0])) continue;
    std::istringstream first_lines(ranks::text_of(texts[0])), other_lines(other);
    std::string a, b;
    while (std::getline(first_lines, a) && std::getline(other_lines, b) && a == b) {
    }
    throw InvalidArgument("options differ between ranks: rank 0 has " + a + ", rank " + std::to_string(r) + " has " +
                          b + "; give every rank the same options");
  }
  options_ = resolved.options;
  if (!options_.graph_after.empty() && options_.graph_file.empty()) options_.graph_file = "autopar_graph.dot";
  set_log_levels(world_.log(), options_.log_level);
  world_.set_stall_limits({options_.stall_warning, options_.stall_timeout});
  if (world_.rank() == 0) {
    for (const auto& note : resolved.notes) log_.warn(note);
  }
  ranks::collective_try(world_, "choosing devices", [&] { deployment_.use(device_of(world_, options_.device)); });
  log_.info("device " + deployment_.device().str());
  devices::context_of(deployment_.device().type()).keep_kernels_in(cache_.kernels);
  if (deployment_.device().is_cuda() && options_.fusion != "off") {
    const auto device = deployment_.device();
    kernels_ahead_.emplace(devices::context_of(device.type()), device.index(), kernels::all_kernels());
  }
  if (options_.keep_memory && deployment_.device().is_cpu()) devices::keep_freed_memory();
  if (options_.precision == "fp16") {
    scaler_.emplace();
    note_scaler();
  }
  resolved_ = true;
}

// ---------------------------------------------------------------- capture

std::string Impl::capture_key(const CallArguments& arguments) const {
  std::uint64_t flags = 0;
  const auto note = [&flags](char flag) { flags = hash_bytes(&flag, 1, flags); };
  for (const auto* part : modules_) note(part->is_training() ? 't' : 'e');
  for (const auto& tensor : parameters_.tensors()) note(tensor.handle.requires_grad() ? 'g' : '-');
  std::string key = arguments.signature + ops::registered_by_users() +
                    (at::GradMode::is_enabled() ? "; gradients" : "; no gradients");
  for (const auto type : {at::kCPU, at::kCUDA}) {
    if (at::autocast::is_autocast_enabled(type)) key += std::string("; autocast ") + c10::DeviceTypeName(type);
  }
  return key + (module_->is_training() ? "; train " : "; eval ") + std::to_string(flags);
}

namespace {

/// Those of CUDA devices that this version supports, with the process's setting of what single precision may be rounded
/// to.
passes::MatrixUnits matrix_units(c10::Device device) {
  return {device.is_cuda(), device.is_cuda() && at::globalContext().allowTF32CuDNN(at::Float32Op::CONV)};
}

}  // namespace

namespace {

/// A tensor that forward reads and is no parameter of the module's.
void require_no_part(const at::Tensor& constant) {
  const auto* layout = parameters::layout_of(constant);
  if (layout == nullptr || !layout->is_part()) return;
  throw InvalidArgument("forward reads '" + layout->name + "' of another AutoParallel model, which " +
                        layout->description +
                        ", so each rank would compute with other values: give forward model->gather(p) of that model "
                        "as an argument, or wrap one module that has both");
}

}  // namespace

trace::CaptureOptions Impl::capture_options() const {
  trace::CaptureOptions capture;
  capture.exact_batch_norm = options_.batch_norm == "exact";
  const auto device = deployment_.device().type();
  capture.device = device;
  capture.on_constant = require_no_part;
  if (options_.precision == "bf16") capture.autocast = trace::Autocast{at::kBFloat16, device};
  if (options_.precision == "bf16-compute")
    capture.autocast = trace::Autocast{at::kBFloat16, device, /*everywhere=*/true};
  if (options_.precision == "fp16") capture.autocast = trace::Autocast{at::kHalf, device};
  return capture;
}

// Autocast lowers single precision only, and one of several settings of element types would be silently without effect.
void Impl::require_one_precision() const {
  if (options_.precision == "module" || options_.precision == "tf32") return;
  const auto setting = "precision = " + options_.precision;
  for (const auto type : {at::kCPU, at::kCUDA}) {
    if (!at::autocast::is_autocast_enabled(type)) continue;
    throw InvalidArgument("autocast is on around the call, but " + setting +
                          " is set, which casts in its place; leave autocast off, or set precision = module");
  }
  const auto& tensors = parameters_.tensors();
  const auto is_single = [](const auto& tensor) {
    return tensor.is_parameter && tensor.handle.scalar_type() == at::kFloat;
  };
  if (std::any_of(tensors.begin(), tensors.end(), is_single)) return;
  const auto first =
      std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.is_parameter; });
  if (first == tensors.end()) return;
  throw InvalidArgument(setting +
                        " keeps parameters in float32 and computes in 16 bits, but the module has none of float32: '" +
                        first->name() + "' is " + c10::toString(first->handle.scalar_type()) +
                        "; convert the module with to(torch::kFloat), or set precision = module");
}

void Impl::capture_into(CapturedProgram& program, const CallArguments& arguments, const ForwardFunction& forward) {
  const auto flat_forward = [&](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> all(arguments.flat_count);
    for (std::size_t i = 0; i < tensors.size(); ++i) all[arguments.positions[i]] = tensors[i];
    auto result = forward(all);
    program.prototype = result.prototype;
    program.result_count = result.tensors.size();
    program.result_positions.clear();
    std::vector<at::Tensor> defined;
    for (std::size_t i = 0; i < result.tensors.size(); ++i) {
      if (!result.tensors[i].defined()) continue;
      program.result_positions.push_back(i);
      defined.push_back(result.tensors[i]);
    }
    return defined;
  };
  require_one_precision();
  program.inputs = arguments.specs;
  {
    const parameters::WholeHandles whole(parameters_.registry());
    const auto before = members_.look({});
    program.captured = trace::capture(*module_, arguments.specs, flat_forward, capture_options());
    if (passes::gains_from_channels_last(program.captured, matrix_units(deployment_.device()))) {
      auto faster =
          passes::capture_channels_last(program.captured, *module_, arguments.specs, flat_forward, capture_options());
      if (faster) std::tie(program.captured, program.inputs) = std::tie(faster->graph, faster->inputs);
    }
    members_.ignore_changes_for_all(before);
  }
  program.verification.members = members_.look(arguments.beside);
  compile(program);
  program.plan = algebra::analyze_batch(program.graph, planning::algebra_options(options_));
  for (const auto& value : program.graph.values) {
    if (value.kind == ValueKind::kConstant && value.constant.defined()) {
      program.constants.emplace_back(value.constant, value.constant._version());
    }
  }
}

void Impl::compile(CapturedProgram& program) {
  const auto device = deployment_.device();
  const passes::PassTarget target{device.type(), joins_operators(), chunks_heads()};
  passes::PassManager manager(passes::pass_list());
  if (!options_.graph_after.empty()) manager.show_after(options_.graph_after);
  const auto log = world_.rank() == 0 ? world_.logger(LogModule::kPasses) : Logger();
  auto compiled = manager.run(program.captured, target, log);
  program.graph = std::move(compiled.graph);
  program.shown = std::move(compiled.shown);
  if (target.fuses && device.is_cuda())
    groups_ahead_.emplace(devices::context_of(device.type()), device.index(),
                          fused::pointwise::kernels_of(program.graph));
}

bool Impl::chunks_heads() const {
  return deployment_.has_plan() ? deployment_.plan().chunked_heads : options_.class_head == "chunked";
}

bool Impl::joins_operators() const {
  const auto device = deployment_.device();
  if (!device.is_cuda()) return options_.fusion == "on";
  return options_.fusion != "off" && devices::context_of(device.type()).compiles_kernels(device.index());
}

void Impl::require_same_graph(const CapturedProgram& program) {
  const std::vector<std::uint64_t> mine{program.captured.hash(), program.captured.ops.size(), program.graph.hash()};
  const auto all = world_.all_gather(std::as_bytes(std::span(mine)), "comparing captured graphs");
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    std::uint64_t first[2], other[2];
    std::memcpy(first, all[0].data(), sizeof(first));
    std::memcpy(other, all[r].data(), sizeof(other));
    throw InvalidArgument("the ranks captured different programs: rank 0 has " + std::to_string(first[1]) +
                          " operators (hash " + std::to_string(first[0]) + "), rank " + std::to_string(r) + " has " +
                          std::to_string(other[1]) + " (hash " + std::to_string(other[0]) +
                          "); construct the same model on every rank, and let forward not depend on the rank");
  }
}

void Impl::capture_and_deploy(const CallArguments& arguments, const std::string& key, std::int64_t batch,
                              const ForwardFunction& forward) {
  const auto start = std::chrono::steady_clock::now();
  const NormalModeScope normal;
  if (!deployed_) {
    ranks::collective_try(world_, "looking for parameters of other models",
                          [&] { parameters_.require_undivided(/*has_placeholders=*/init_ != nullptr); });
  }
  PlannedModes modes;
  if (!deployment_.has_plan()) modes = capture_other_modes(arguments, forward);
  auto program = std::make_shared<CapturedProgram>();
  ranks::collective_try(world_, "capturing the model", [&] { capture_into(*program, arguments, forward); });
  require_same_graph(*program);
  ++stats_.captures;
  modes.add(program, at::GradMode::is_enabled());
  modes.recorded = may_record(*modes.planned);

  cost::GraphProfile profile;
  if (!deployed_)
    ranks::collective_try(world_, "profiling the model", [&] {
      profile = modes.programs().profile(planning::planned_device(options_, deployment_.device()));
    });
  if (!deployment_.has_plan()) make_plan(modes, profile, batch);
  if (options_.plan_only) return;
  const bool is_divided = !deployed_ && modes.planned == program;
  if (is_divided) program->checked_batch = deployment_.plan().batch;
  if (!deployed_) deploy_state(modes, profile);
  if (!is_divided) {
    cost::AtomPartition atoms;
    ranks::collective_try(world_, "profiling the model", [&] {
      atoms = program->captured.hash() == planned_hash_ ? planned_atoms_
                                                        : cost::partition_into_atoms(program->graph, program->plan);
    });
    static_cast<void>(divide_program(*program, atoms));
  }
  ranks::collective_try(world_, "sharing parameters", [&] {
    staging::include_holders(program->division, program->graph, holders_in(program->graph));
    if (parameters_.units().empty()) return;
    const auto sharded = sharded_parameters(*program);
    staging::shard_groups(program->division, program->graph, program->plan, sharded);
    if (parts_backwards(deployment_.plan())) return;
    // As plans are costed: of a synthesised one as if it parted its backwards.
    const auto kept = keeps_backwards_whole(deployment_.plan().schedule)
                          ? kKeptForBackward
                          : Bytes(std::numeric_limits<std::int64_t>::max());
    staging::order_backward_gathers(program->division, program->graph, program->plan, sharded, program->recomputed,
                                    kept);
  });
  build_runtime(*program);
  warn_of_batch_statistics(*program, batch);
  remember(key, program);
  if (deployment_.device().is_cpu()) devices::release_freed_memory();  // what planning needed
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  stats_.planning += Seconds(spent.count());
  log_.info("captured " + std::to_string(program->captured.ops.size()) + " operators, ready in " +
            std::to_string(spent.count()) + " s");
}

std::vector<StageId> Impl::divide_program(CapturedProgram& program, cost::AtomPartition atoms) {
  std::vector<StageId> stage_of;
  ranks::collective_try(world_, "dividing the model", [&] {
    stage_of = stages_of_ops(program, atoms);
    require_whole_batches(program, stage_of);
    if (!deployed_) segments_ = staging::PlannedSegments(deployment_.plan(), program.graph, atoms);
    program.recomputed = segments_.in(program.graph, atoms);
    shard_program(program, stage_of, atoms);
    staging::StageMap stages{stage_of, {}, {}};
    for (const auto& stage : deployment_.plan().stages) stages.meshes.push_back(stage.mesh);
    stages = staging::cut_at_collectives(program.graph, program.plan, atoms, stages);
    program.parts = stages.parts;
    program.division = staging::divide(program.graph, program.plan, stages, world_.size());
    describe_shards(program);
  });
  return stage_of;
}

void Impl::deploy_state(const PlannedModes& modes, const cost::GraphProfile& profile) {
  auto& program = *modes.planned;
  planned_hash_ = program.captured.hash();
  planned_atoms_ = profile.atoms;
  ranks::collective_try(world_, "slicing parameters", [&] { slice_parameters(program, profile); });
  const auto stage_of = divide_program(program, profile.atoms);
  deployment_.start();
  place_state(program, stage_of, modes.others);
  for (const auto& tensor : parameters_.tensors()) {
    static_cast<void>(deployment_.group_of(tensor.holders));
    for (const auto& replicas : tensor.replicas_of_shard) static_cast<void>(deployment_.group_of(replicas));
  }
  ranks::collective_try(world_, "checking optimizers", [&] { require_optimizers(deployment_.plan()); });
  plan_shards(program);
  ranks::collective_try(world_, "looking for parameters of other models", [&] { parameters_.require_unshared(); });
  const bool is_loaded = !early_loads_.empty();
  if (is_loaded) in_step("load", [&] { early_loads_.bring(world_, placed(), init_.get()); });
  materialise_state();
  parameters_.hold_slices(init_.get(), deployment_.device());
  parameters_.hold_shards(init_.get(), deployment_.device());
  parameters_.mark_handles();
  keep_copies(program);
  deployed_ = true;
  ranks::collective_try(world_, "fitting optimizers", [&] {
    for (auto* optimizer : optimizers_) fit_optimizer(*optimizer);
  });
  if (world_.size() > 1) outside_.watch(parameters_, deployment_.device());
  if (init_) init_->forget_states();
  if (is_loaded) in_step("load", [&] { take_info(early_loads_.take_over(init_.get())); });
}

void Impl::remember(const std::string& key, std::shared_ptr<CapturedProgram> program) {
  const bool forgets = programs_.remember(key, std::move(program));
  if (!forgets || std::exchange(warned_of_forgetting_, true) || world_.rank() != 0) return;
  log_.warn("forward was captured for more than " + std::to_string(kRememberedPrograms) +
            " signatures of its arguments, so the one called longest ago is forgotten, and captured again when it "
            "comes back. Each capture takes time: pass a number that changes from call to call as a 0-dim tensor, "
            "and let sizes other than the batch's be few");
}

std::vector<StageId> Impl::stages_of_ops(const CapturedProgram& program, const cost::AtomPartition& atoms) const {
  if (program.captured.hash() == planned_hash_) {
    std::vector<StageId> stage_of(program.graph.ops.size());
    for (std::size_t s = 0; s < deployment_.plan().stages.size(); ++s) {
      for (const auto op : deployment_.plan().stages[s].ops) stage_of.at(static_cast<std::size_t>(op)) = StageId::of(s);
    }
    return stage_of;
  }
  return staging::place_by_parameters(program.graph, program.plan, atoms, homes_in(program.graph),
                                      static_cast<int>(deployment_.plan().stages.size()));
}

std::vector<std::vector<StageId>> Impl::homes_in(const OpGraph& graph) const {
  std::vector<std::vector<StageId>> home(graph.values.size());
  for (const auto* leaves : {&graph.parameters, &graph.buffers}) {
    for (const auto& [name, value] : *leaves) {
      home[value.index()] = parameters_.named(name).stages;
    }
  }
  return home;
}

std::vector<std::vector<Rank>> Impl::holders_in(const OpGraph& graph) const {
  std::vector<std::vector<Rank>> holders(graph.values.size());
  for (const auto& [name, value] : graph.parameters) {
    holders[value.index()] = parameters_.named(name).holders;
  }
  return holders;
}

void Impl::require_whole_batches(const CapturedProgram& program, const std::vector<StageId>& stage_of) const {
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

// ---------------------------------------------------------------- runtime

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

}  // namespace

void Impl::build_runtime(CapturedProgram& program) {
  const auto& division = program.division;
  const auto lookup = [this, &graph = program.graph](ValueId leaf) { return handle_of(graph, leaf); };
  ranks::collective_try(world_, "preparing the stages", [&] {
    const auto compute = [this, &graph = program.graph](ValueId leaf) {
      return parameters_.compute_memory(graph.value(leaf).name);
    };
    const auto copy = [this, &graph = program.graph](ValueId leaf) {
      return parameters_.compute_copy(graph.value(leaf).name);
    };
    program.runtime = std::make_unique<engine::RankRuntime>(
        program.runnable(), program.plan, division, world_.rank_id(), deployment_.device(),
        engine::Stage::Leaves{lookup, compute, copy}, parts_backwards(deployment_.plan()), program.recomputed,
        sharded_groups(division, parameters_), deployment_.plan().buckets);
    program.prologue = std::make_unique<Prologue>(program.graph, program.plan, deployment_.device(), lookup);
    program.epilogue = std::make_unique<Epilogue>(program.graph, program.plan, deployment_.device());
    std::vector<const algebra::BufferUpdate*> held;
    for (const auto& update : program.plan.buffer_updates) {
      const bool here = parameters_.holds(parameters_.named(program.graph.value(update.buffer).name));
      if (here && update.kind == algebra::BufferUpdateKind::kReplicated) held.push_back(&update);
    }
    program.replicated_updates =
        std::make_unique<ReplicatedUpdates>(program.graph, program.plan, held, deployment_.device(), lookup);
  });
  for (const auto& group : division.pipeline.groups) {
    program.groups.push_back(deployment_.group_of(group.ranks));
    const bool gathers_apart = group.zero >= 3;
    program.gather_groups.push_back(gathers_apart ? deployment_.gather_group_of(group.ranks) : program.groups.back());
  }
  for (const auto& mesh : division.pipeline.stages) {
    auto& own = program.tensor_groups.emplace_back();
    if (mesh.tensor() == 1) continue;
    for (int q = 0; q < mesh.replicas(); ++q) {
      const auto ranks = mesh.tensor_group(q);
      const auto group = deployment_.tensor_group_of({ranks.begin(), ranks.end()});
      if (mesh.replica_of(world_.rank_id()) == q) own = group;
    }
  }
  deployment_.connect(division.pipeline);
}

void Impl::verify_sizes(CapturedProgram& program, const CallArguments& arguments, const ForwardFunction& forward,
                        const BatchLayout& layout) {
  constexpr std::size_t kSizesVerified = 16;
  if (!arguments.has_batch || program.verified.size() >= kSizesVerified) return;
  const auto batch = std::accumulate(layout.local.begin(), layout.local.end(), std::int64_t{0});
  if (!program.verified.insert(batch).second) return;
  const std::int64_t sizes[] = {batch};
  const auto flat_forward = [&](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> all(arguments.flat_count), defined;
    for (std::size_t i = 0; i < tensors.size(); ++i) all[arguments.positions[i]] = tensors[i];
    for (auto& tensor : forward(all).tensors) {
      if (tensor.defined()) defined.push_back(tensor);
    }
    return defined;
  };
  ranks::collective_try(world_, "verifying the capture", [&] {
    const NormalModeScope as_captured;
    const parameters::WholeHandles whole(parameters_.registry());
    trace::verify_capture(program.captured, *module_, program.inputs, flat_forward, sizes, capture_options());
  });
}

}  // namespace autopar::session
