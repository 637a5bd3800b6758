#include "torch/session/session_impl.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <numeric>
#include <sstream>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <autopar/core/error.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/plan/runnable.hpp>
#include <autopar/io/profile_file.hpp>
#include <autopar/plan/print.hpp>
#include <autopar/torch/device.hpp>
#include <autopar/torch/phantom.hpp>
#include <autopar/torch/rewrite/cast_hoist.hpp>
#include <autopar/torch/rewrite/linear_fold.hpp>

#include "torch/session/graph_dot.hpp"
#include "torch/session/host_memory.hpp"
#include "torch/session/whole_handles.hpp"

#ifdef AUTOPAR_TORCH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace autopar {

namespace {

std::span<const std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.const_data_ptr()), static_cast<std::size_t>(contiguous.nbytes())};
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

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

Bytes mean_trained_tensor(const ModelProfile& profile) {
  std::int64_t bytes = 0, count = 0;
  for (const auto& parameter : profile.parameters) {
    if (!parameter.trainable) continue;
    bytes += parameter.bytes.value();
    ++count;
  }
  return Bytes(std::max<std::int64_t>(1, count == 0 ? 0 : bytes / count));
}

/// How many dotted parts two names have in common at their start.
std::size_t common_parts(const std::string& a, const std::string& b) {
  std::size_t parts = 0;
  for (std::size_t i = 0; i < a.size() && i < b.size() && a[i] == b[i]; ++i) parts += a[i] == '.' ? 1 : 0;
  return parts;
}

/// What reading a tensor that this rank does not hold says.
std::string describe_absence(const StateTensor& tensor, int rank) {
  std::string ranks;
  for (const auto holder : tensor.holders) ranks += (ranks.empty() ? "" : ", ") + std::to_string(holder.value());
  return std::string(tensor.is_parameter ? "parameter '" : "buffer '") + tensor.name() + "' has no data on rank " +
         std::to_string(rank) + "; it lives on rank " + ranks +
         ": use model->gather(p) for its value, model->owned_parameters() for what is here";
}

/// Batch norms normalise by less than the batch: what a user should know of the plan (DESIGN §5).
void note_batch_statistics(Plan& plan, const BatchPlan& algebra, std::int64_t batch) {
  std::set<std::int64_t> samples;
  for (const auto& stage : plan.stages) {
    const auto shares = static_cast<std::int64_t>(plan.microbatches) * static_cast<std::int64_t>(stage.ranks.size());
    const auto normalises = [&](auto op) { return algebra.normalises_by_share(OpId::of(static_cast<std::size_t>(op))); };
    if (std::any_of(stage.ops.begin(), stage.ops.end(), normalises)) samples.insert(std::max<std::int64_t>(1, batch / shares));
  }
  if (samples.empty() || *samples.begin() == batch) return;
  std::string counts;
  for (const auto count : samples) counts += (counts.empty() ? "" : ", ") + std::to_string(count);
  plan.notes.push_back("batch norm: each statistic is of " + counts + " of the " + std::to_string(batch) +
                       " samples (a micro-batch of a replica); batch_norm = exact takes the whole batch");
}

void add_once(std::vector<StageId>& stages, StageId stage) {
  const auto at = std::lower_bound(stages.begin(), stages.end(), stage);
  if (at == stages.end() || *at != stage) stages.insert(at, stage);
}

}  // namespace

Session::Impl::Impl(World& world, std::shared_ptr<torch::nn::Module> module, Options code, PlanFunction planner,
                    std::shared_ptr<InitRecord> init)
    : world_(world), module_(std::move(module)), code_(std::move(code)), options_(code_), planner_(std::move(planner)),
      init_(std::move(init)), registry_(*module_), log_(world.logger(LogModule::kSession)),
      losses_(world.rank() == 0 ? log_ : Logger()) {
  for (const auto& part : module_->modules()) modules_.push_back(part.get());
}

// ---------------------------------------------------------------- options

void Session::Impl::resolve_once() {
  if (resolved_) return;
  ResolvedOptions resolved;
  together(world_, "resolving options", [&] { resolved = resolve_options(code_, process_config_sources()); });
  std::string text;
  const auto described = describe_options(resolved.options);
  for (const auto& [name, value] : described) text += name + " = " + value + "\n";
  const auto texts = world_.all_gather(blob_of(text), "comparing options");
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const auto other = text_of(texts[r]);
    if (other == text_of(texts[0])) continue;
    std::istringstream first_lines(text_of(texts[0])), other_lines(other);
    std::string a, b;
    while (std::getline(first_lines, a) && std::getline(other_lines, b) && a == b) {
    }
    throw InvalidArgument("options differ between ranks: rank 0 has " + a + ", rank " + std::to_string(r) + " has " + b +
                          "; give every rank the same options");
  }
  options_ = resolved.options;
  set_log_levels(world_.log(), options_.log_level);
  world_.set_stall_limits({options_.stall_warning, options_.stall_timeout});
  if (world_.rank() == 0) {
    for (const auto& note : resolved.notes) log_.warn(note);
  }
  together(world_, "choosing devices", [&] { device_ = device_of(world_, options_.device); });
  log_.info("device " + device_.str());
  if (options_.keep_memory && device_.is_cpu()) keep_freed_memory();
  if (options_.precision == "fp16") {
    scaler_.emplace();
    note_scaler();
  }
  resolved_ = true;
}

// ---------------------------------------------------------------- capture

std::string Session::Impl::capture_key(const CallArguments& arguments) const {
  std::uint64_t flags = 0;
  const auto note = [&flags](char flag) { flags = hash_bytes(&flag, 1, flags); };
  for (const auto* part : modules_) note(part->is_training() ? 't' : 'e');
  for (const auto& tensor : registry_.tensors()) note(tensor.handle.requires_grad() ? 'g' : '-');
  std::string key = arguments.signature + (at::GradMode::is_enabled() ? "; gradients" : "; no gradients");
  for (const auto type : {at::kCPU, at::kCUDA}) {
    if (at::autocast::is_autocast_enabled(type)) key += std::string("; autocast ") + c10::DeviceTypeName(type);
  }
  return key + (module_->is_training() ? "; train " : "; eval ") + std::to_string(flags);
}

CaptureOptions Session::Impl::capture_options() const {
  CaptureOptions capture;
  capture.batch_norm_by_totals = options_.batch_norm == "exact";
  if (options_.precision == "bf16") capture.autocast = Autocast{at::kBFloat16, device_.type()};
  if (options_.precision == "fp16") capture.autocast = Autocast{at::kHalf, device_.type()};
  return capture;
}

// Autocast lowers single precision only, and one of several settings of element types would be silently without effect.
void Session::Impl::require_one_precision() const {
  if (options_.precision == "module" || options_.precision == "tf32") return;
  const auto setting = "precision = " + options_.precision;
  for (const auto type : {at::kCPU, at::kCUDA}) {
    if (!at::autocast::is_autocast_enabled(type)) continue;
    throw InvalidArgument("autocast is on around the call, but " + setting +
                          " is set, which casts in its place; leave autocast off, or set precision = module");
  }
  const auto& tensors = registry_.tensors();
  const auto is_single = [](const auto& tensor) { return tensor.is_parameter && tensor.handle.scalar_type() == at::kFloat; };
  if (std::any_of(tensors.begin(), tensors.end(), is_single)) return;
  const auto first = std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.is_parameter; });
  if (first == tensors.end()) return;
  throw InvalidArgument(setting + " keeps parameters in float32 and computes in 16 bits, but the module has none of float32: '" +
                        first->name() + "' is " + c10::toString(first->handle.scalar_type()) +
                        "; convert the module with to(torch::kFloat), or set precision = module");
}

bool Session::Impl::needs_capture(const std::string& key) const {
  const auto known = programs_.find(key);
  return known == programs_.end() || known->second->is_stale();
}

void Session::Impl::capture_into(CapturedProgram& program, const CallArguments& arguments,
                                 const ForwardFunction& forward) {
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
  const WholeHandles whole(registry_);
  program.captured = capture(*module_, arguments.specs, flat_forward, capture_options());
  program.graph = fold_linear(hoist_parameter_casts(program.captured));
  AlgebraOptions algebra;
  algebra.batch_norm = options_.batch_norm == "exact" ? BatchNormMode::kExact : BatchNormMode::kMicrobatch;
  program.plan = analyze_batch(program.graph, algebra);
  for (const auto& value : program.graph.values) {
    if (value.kind == ValueKind::kConstant && value.constant.defined()) {
      program.constants.emplace_back(value.constant, value.constant._version());
    }
  }
}

void Session::Impl::require_same_graph(const CapturedProgram& program) {
  const std::vector<std::uint64_t> mine{program.captured.hash(), program.captured.ops.size()};
  const auto all = world_.all_gather(bytes_of(mine), "comparing captured graphs");
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

void Session::Impl::capture_and_deploy(const CallArguments& arguments, const std::string& key, std::int64_t batch,
                                       const ForwardFunction& forward) {
  const auto start = std::chrono::steady_clock::now();
  auto program = std::make_shared<CapturedProgram>();
  together(world_, "capturing the model", [&] { capture_into(*program, arguments, forward); });
  require_same_graph(*program);
  ++stats_.captures;
  GraphProfile profile;
  together(world_, "profiling the model", [&] { profile = profile_graph(program->graph, program->plan); });
  if (!plan_) make_plan(*program, profile, batch);
  if (options_.plan_only) return;

  std::vector<StageId> stage_of;
  together(world_, "dividing the model", [&] {
    stage_of = stages_of_ops(*program, profile.atoms);
    require_whole_batches(*program, stage_of);
    StageMap stages{stage_of, {}, {}};
    for (const auto& stage : plan_->stages) stages.stage_ranks.push_back(stage.ranks);
    stages = cut_at_totals(program->graph, program->plan, profile.atoms, stages);
    program->parts = stages.parts;
    program->division = divide(program->graph, program->plan, stages, world_.size());
    if (!deployed_) segments_ = PlannedSegments(*plan_, program->graph, profile.atoms);
    program->recomputed = segments_.in(program->graph, profile.atoms);
  });
  if (!deployed_) {
    make_transports();
    place_state(*program, stage_of);
    for (const auto& tensor : registry_.tensors()) static_cast<void>(group_of(tensor.holders));
    together(world_, "checking optimizers", [&] { require_optimizers(*plan_); });
    plan_shards(*program);
    materialise_state();
    hold_shards();
    deployed_ = true;
    together(world_, "fitting optimizers", [&] {
      for (auto* optimizer : optimizers_) fit_optimizer(*optimizer);
    });
    if (load_at_deployment_) {
      const auto [folder, optimizers] = *std::exchange(load_at_deployment_, std::nullopt);
      load(folder, optimizers);
    }
  }
  together(world_, "sharing parameters", [&] {
    if (!units_.empty()) share_groups(program->division, program->graph, shared_parameters(*program));
  });
  build_runtime(*program);
  programs_[key] = program;
  if (device_.is_cpu()) release_freed_memory();  // what planning needed
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  stats_.planning += Seconds(spent.count());
  log_.info("captured " + std::to_string(program->captured.ops.size()) + " operators, ready in " +
            std::to_string(spent.count()) + " s");
}

// ---------------------------------------------------------------- plan

void Session::Impl::make_plan(const CapturedProgram& program, const GraphProfile& profile, std::int64_t batch) {
  auto costs = measured_costs(program, profile, batch);
  Blob bytes;
  together(world_, "planning", [&] {
    if (world_.rank() != 0) return;
    auto plan = plan_or_read(program, profile, batch, std::move(costs));
    adopt_plan(profile, plan);
    write_reports(program.graph, profile.model);
    bytes = blob_of(to_json(plan));
  });
  bytes = world_.broadcast(std::move(bytes), Rank(0), "sending the plan");
  if (!plan_) adopt_plan(profile, parse_plan(text_of(bytes), "the plan of rank 0"));
}

bool Session::Impl::reads_plan() const {
  return options_.load_plan && !options_.plan_file.empty() && std::filesystem::exists(options_.plan_file);
}

Plan Session::Impl::plan_or_read(const CapturedProgram& program, const GraphProfile& profile, std::int64_t batch,
                                 MeasuredCosts costs) const {
  if (given_plan_) return *given_plan_;
  if (reads_plan()) return read_plan(options_.plan_file);

  const auto cluster = options_.cluster_file.empty() ? describe_cluster(world_, device_)
                                                     : read_cluster(options_.cluster_file);
  PlanRequest request;
  request.options = options_;
  request.runtime = runtime_capabilities();
  if (optimizers_.empty() && options_.zero < 0) request.runtime.max_zero = 0;  // nothing says that it steps element by element
  if (optimizers_.empty() && options_.offload == "auto") request.runtime.offload = false;  // nor how much state there is
  for (const auto* optimizer : optimizers_) {
    request.options.optimizer_state_factor = optimizer == optimizers_.front()
                                                 ? state_factor(*optimizer)
                                                 : std::max(request.options.optimizer_state_factor, state_factor(*optimizer));
  }
  const bool elsewhere = options_.plan_only && !options_.cluster_file.empty();
  request.world = elsewhere ? cluster.devices : world_.size();
  request.batch = elsewhere ? batch / world_.size() * cluster.devices : batch;
  const ProfiledCost model_costs(at_precision(cluster, options_.precision), std::move(costs),
                                 mean_trained_tensor(profile.model));
  auto plan = planner_(profile.model, model_costs, cluster, request);
  note_batch_statistics(plan, program.plan, request.batch);
  if (options_.precision == "tf32" && device_.is_cpu()) {
    plan.notes.push_back("precision = tf32 changes nothing on CPUs, which have no such products");
  }
  if (!options_.plan_file.empty() && options_.save_plan) write_plan(options_.plan_file, plan);
  return plan;
}

void Session::Impl::adopt_plan(const GraphProfile& profile, Plan plan) {
  if (plan.precision != options_.precision) {
    throw InvalidArgument("the plan was made for precision = " + plan.precision + ", but precision = " + options_.precision +
                          " is set; set it to the plan's, or remove the plan to plan again");
  }
  if (plan.model != profile.model.hash) {
    std::size_t planned = 0, captured = 0;
    for (const auto& stage : plan.stages) planned += stage.ops.size();
    for (const auto& atom : profile.atoms.atoms) captured += atom.size();
    throw InvalidArgument("the plan was made for another model or another mode of it: it divides " +
                          std::to_string(planned) + " operators of model " + std::to_string(plan.model) +
                          ", this model has " + std::to_string(captured) + " and is " +
                          std::to_string(profile.model.hash) + "; remove the plan to plan again");
  }
  if (plan.world != world_.size() && !options_.plan_only) {
    throw InvalidArgument("the plan was made for " + std::to_string(plan.world) + " ranks, but the world has " +
                          std::to_string(world_.size()) + "; start as many ranks, or remove the plan to plan again");
  }
  if (!options_.plan_only) require_runnable(plan, runtime_capabilities());
  plan_ = std::move(plan);
}

void Session::Impl::write_reports(const OpGraph& graph, const ModelProfile& profile) const {
  if (!options_.graph_file.empty()) write_text_file(options_.graph_file, to_dot(graph, *plan_));
  if (!options_.profile_file.empty()) write_profile(options_.profile_file, profile);
  if (!options_.report_file.empty()) write_text_file(options_.report_file, to_text(*plan_));
  world_.logger(LogModule::kPlanner).info(to_text(*plan_));
}

std::vector<StageId> Session::Impl::stages_of_ops(const CapturedProgram& program, const AtomPartition& atoms) const {
  if (!deployed_) {
    std::vector<StageId> stage_of(program.graph.ops.size());
    for (std::size_t s = 0; s < plan_->stages.size(); ++s) {
      for (const auto op : plan_->stages[s].ops) stage_of.at(static_cast<std::size_t>(op)) = StageId::of(s);
    }
    return stage_of;
  }
  std::vector<std::vector<StageId>> home(program.graph.values.size());
  for (const auto* leaves : {&program.graph.parameters, &program.graph.buffers}) {
    for (const auto& [name, value] : *leaves) {
      home[value.index()] = const_cast<StateRegistry&>(registry_).named(name).stages;
    }
  }
  return place_by_parameters(program.graph, program.plan, atoms, home, static_cast<int>(plan_->stages.size()));
}

void Session::Impl::require_whole_batches(const CapturedProgram& program, const std::vector<StageId>& stage_of) const {
  for (std::size_t i = 0; i < stage_of.size(); ++i) {
    const auto& treatment = program.plan.ops[i];
    if (!treatment.in_stage || !(treatment.whole_batch || treatment.total)) continue;
    const auto replicas = plan_->stages[stage_of[i].index()].ranks.size();
    if (plan_->microbatches == 1 && (replicas == 1 || treatment.total)) continue;
    if (treatment.total) {
      throw CaptureError(program.graph.name(OpId::of(i)), program.graph.ops[i].path,
                         "it is exact with one micro-batch only, but the plan has " + std::to_string(plan_->microbatches));
    }
    throw CaptureError(program.graph.name(OpId::of(i)), program.graph.ops[i].path,
                       treatment.reason + "; it is exact with one micro-batch and one replica only, but the plan has " +
                           std::to_string(plan_->microbatches) + " micro-batches and " + std::to_string(replicas) +
                           " replicas of its stage");
  }
}

// ---------------------------------------------------------------- state

void Session::Impl::place_state(const CapturedProgram& program, const std::vector<StageId>& stage_of) {
  for (std::size_t i = 0; i < stage_of.size(); ++i) {
    if (!program.plan.ops[i].in_stage) continue;
    for_each_input(program.graph.ops[i], [&](ValueId value) {
      const auto& info = program.graph.value(value);
      if (info.kind != ValueKind::kParameter && info.kind != ValueKind::kBuffer) return;
      add_once(registry_.named(info.name).stages, stage_of[i]);
    });
  }
  // What this mode does not use may be needed by another: it goes with what is registered nearest to it.
  auto& tensors = registry_.tensors();
  const auto placed = tensors;
  for (auto& tensor : tensors) {
    if (!tensor.stages.empty()) continue;
    std::size_t best = 0;
    tensor.stages = {StageId(0)};
    for (const auto& other : placed) {
      const auto parts = common_parts(tensor.name(), other.name());
      if (other.stages.empty() || parts <= best) continue;
      best = parts;
      tensor.stages = {other.stages.back()};
    }
  }
  std::vector<Rank> everyone;
  for (int r = 0; r < world_.size(); ++r) everyone.push_back(Rank(r));
  for (auto& tensor : tensors) {
    for (const auto stage : tensor.stages) {
      const auto& ranks = plan_->stages[stage.index()].ranks;
      tensor.holders.insert(tensor.holders.end(), ranks.begin(), ranks.end());
    }
    std::sort(tensor.holders.begin(), tensor.holders.end());
    tensor.holders.erase(std::unique(tensor.holders.begin(), tensor.holders.end()), tensor.holders.end());
  }
  for (const auto leaf : program.plan.prologue_leaves) {
    registry_.named(program.graph.value(leaf).name).holders = everyone;
  }
}

bool Session::Impl::holds(const StateTensor& tensor) const {
  return std::binary_search(tensor.holders.begin(), tensor.holders.end(), world_.rank_id());
}

void Session::Impl::materialise_state() {
  const auto seed = static_cast<std::int64_t>(at::detail::getDefaultCPUGenerator().current_seed());
  const auto seeds = world_.broadcast(blob_of(std::to_string(seed)), Rank(0), "agreeing on the seed");
  seed_ = static_cast<std::uint64_t>(std::stoll(text_of(seeds)));
  if (init_) {
    const auto& own = init_->generator_state();
    auto state = world_.broadcast(Blob(bytes_of(own).begin(), bytes_of(own).end()), Rank(0), "agreeing on the generator");
    if (!std::equal(state.begin(), state.end(), bytes_of(own).begin(), bytes_of(own).end())) {
      log_.warn("this rank's random generator differed from rank 0's when the model was constructed; rank 0's is used");
      auto shared = at::empty_like(own);
      std::memcpy(shared.data_ptr(), state.data(), state.size());
      auto generator = at::detail::getDefaultCPUGenerator();
      const auto after = init_->rebase(shared);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(after);
    }
  }
  std::vector<at::Tensor> own;
  for (auto& tensor : registry_.tensors()) {
    if (holds(tensor)) own.push_back(tensor.handle);
  }
  if (init_) init_->materialise(own);
  else take_values_of_rank_0();
  for (auto& tensor : registry_.tensors()) {
    if (holds(tensor)) continue;
    const auto description = describe_absence(tensor, world_.rank());
    if (is_phantom(tensor.handle)) describe_phantom(tensor.handle, description);
    else turn_into_phantom(tensor.handle, description);
  }
  const at::NoGradGuard no_grad;
  for (auto& tensor : registry_.tensors()) {
    const bool moves = holds(tensor) && tensor.handle.device() != device_ && !is_offloaded(tensor);
    if (moves) tensor.handle.set_data(tensor.handle.to(device_));
  }
}

// The model was constructed on every rank: rank 0's values win, and only what differs is sent.
void Session::Impl::take_values_of_rank_0() {
  const at::NoGradGuard no_grad;
  auto& tensors = registry_.tensors();
  std::vector<at::Tensor> host;
  std::vector<std::uint64_t> hashes;
  for (auto& tensor : tensors) {
    host.push_back(tensor.handle.detach().to(at::kCPU).contiguous());
    hashes.push_back(hash_bytes(host.back().numel() > 0 ? host.back().const_data_ptr() : nullptr, host.back().nbytes()));
  }
  const auto all = world_.all_gather(bytes_of(hashes), "comparing parameters");
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r].size() != all[0].size()) {
      throw InvalidArgument("rank " + std::to_string(r) + " has another number of parameters and buffers than rank 0; " +
                            "construct the same model on every rank");
    }
  }
  const auto hash_at = [&](std::size_t r, std::size_t i) {
    std::uint64_t hash = 0;
    std::memcpy(&hash, all[r].data() + i * sizeof(hash), sizeof(hash));
    return hash;
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (const auto rank : tensors[i].holders) {
      if (rank == Rank(0) || hash_at(rank.index(), i) == hash_at(0, i)) continue;
      if (world_.rank() == 0) world_.send(bytes_of(host[i]), rank, "sending a parameter");
      if (world_.rank_id() != rank) continue;
      log_.warn("'" + tensors[i].name() + "' differs from rank 0's, which is used");
      auto received = at::empty_like(host[i]);
      world_.receive({static_cast<std::byte*>(received.data_ptr()), static_cast<std::size_t>(received.nbytes())}, Rank(0),
                     "receiving a parameter");
      tensors[i].handle.copy_(received);
    }
  }
}

at::Tensor Session::Impl::handle_of(const OpGraph& graph, ValueId leaf) {
  return registry_.named(graph.value(leaf).name).handle;
}

// ---------------------------------------------------------------- runtime

AnyTransport Session::Impl::new_transport() {
  TransportOptions options;
#ifdef AUTOPAR_TORCH_CUDA
  if (device_.is_cuda()) {
    options.kind = TransportKind::kNccl;
    options.device = device_.index();
    options.compute_stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  }
#endif
  return world_.make_transport(options);
}

void Session::Impl::make_transports() {
  wire_ = new_transport();
  std::vector<Rank> everyone;
  for (int r = 0; r < world_.size(); ++r) everyone.push_back(Rank(r));
  world_sums_ = GlobalSums(wire_, group_of(everyone), world_.size(), device_);
}

GroupId Session::Impl::group_of(const std::vector<Rank>& ranks) {
  if (ranks.size() < 2) return {};
  auto [known, is_new] = groups_.try_emplace(ranks);
  if (is_new) known->second = wire_.make_group(ranks);
  return known->second;
}

void Session::Impl::build_runtime(CapturedProgram& program) {
  const auto& division = program.division;
  const auto lookup = [this, &graph = program.graph](ValueId leaf) { return handle_of(graph, leaf); };
  together(world_, "preparing the stages", [&] {
    const auto compute = [this, &graph = program.graph](ValueId leaf) { return compute_memory_of(graph, leaf); };
    const auto copy = [this, &graph = program.graph](ValueId leaf) { return copy_of(graph, leaf); };
    program.runtime = std::make_unique<RankRuntime>(program.graph, program.plan, division, world_.rank_id(), device_,
                                                    StageRuntime::Leaves{lookup, compute, copy}, parts_backwards(*plan_),
                                                    program.recomputed, shared_groups(division));
    program.prologue = std::make_unique<Prologue>(program.graph, program.plan, device_, lookup);
    program.epilogue = std::make_unique<Epilogue>(program.graph, program.plan, device_);
  });
  for (const auto& group : division.pipeline.groups) {
    program.groups.push_back(group_of(group.ranks));
    program.gather_groups.push_back(program.groups.back());
    if (group.zero < 3) continue;
    auto [known, is_new] = gather_groups_.try_emplace(group.ranks);
    if (is_new) known->second = wire_.make_group(group.ranks);
    program.gather_groups.back() = known->second;
  }
  std::vector<DirectedPair> pairs;
  for (const auto& channel : division.pipeline.channels) {
    const auto ranks_of = [&](StageId stage) {
      std::vector<Rank> everyone;
      for (int r = 0; r < world_.size(); ++r) everyone.push_back(Rank(r));
      return stage.valid() ? division.pipeline.stages[stage.index()] : everyone;
    };
    for (const auto from : ranks_of(channel.from)) {
      for (const auto to : ranks_of(channel.to)) {
        if (from == to) continue;
        pairs.push_back({from, to});
        if (channel.differentiable) pairs.push_back({to, from});
      }
    }
  }
  const auto before = [](const DirectedPair& a, const DirectedPair& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  };
  std::sort(pairs.begin(), pairs.end(), before);
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  wire_.connect(pairs);
}

void Session::Impl::verify_sizes(CapturedProgram& program, const CallArguments& arguments,
                                 const ForwardFunction& forward, const BatchLayout& layout) {
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
  together(world_, "verifying the capture", [&] {
    const WholeHandles whole(registry_);
    verify_capture(program.captured, *module_, program.inputs, flat_forward, sizes, capture_options());
  });
}

}  // namespace autopar
