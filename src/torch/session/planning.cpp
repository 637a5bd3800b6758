// What is planned, or read, and on which costs.
#include "ops/registry.hpp"
#include "torch/session/session_impl.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include <autopar/core/error.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/profile_file.hpp>
#include <autopar/io/progress.hpp>
#include <autopar/plan/check/require_sound.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/plan/report/runnable.hpp>
#include <autopar/schedule/batch_split.hpp>
#include <autopar/torch/device.hpp>

#include "torch/session/graph_dot.hpp"

namespace autopar::session {

namespace {

Bytes mean_trained_tensor(const ModelProfile& profile) {
  std::int64_t bytes = 0, count = 0;
  for (const auto& parameter : profile.parameters) {
    if (!parameter.trainable) continue;
    bytes += parameter.bytes.value();
    ++count;
  }
  return Bytes(std::max<std::int64_t>(1, count == 0 ? 0 : bytes / count));
}

/// Whether the op is a batch norm to which a sample brings one value of each channel.
bool takes_one_value(const algebra::BatchSemantics& algebra, OpId op) {
  const auto norm = algebra.handling(op).batch_norm;
  return norm >= 0 && algebra.normalises_by_slice(op) &&
         algebra.batch_norms[static_cast<std::size_t>(norm)].samples.at(1) < 2;
}

/// Samples of a slice of the batch.
std::int64_t samples_of_slice(std::int64_t batch, int microbatches, int replicas) {
  return std::max<std::int64_t>(1, batch / microbatches / replicas);
}

/// Whether a plan leaves some batch norm a single value of each channel.
bool starves_statistics(const Plan& plan, const algebra::BatchSemantics& algebra, std::int64_t batch) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [&](const StagePlan& stage) {
    const auto takes_one = [&](auto op) { return takes_one_value(algebra, OpId::of(static_cast<std::size_t>(op))); };
    return std::any_of(stage.ops.begin(), stage.ops.end(), takes_one) &&
           samples_of_slice(batch, plan.microbatches, stage.mesh.replicas()) < 2;
  });
}

/// Takes no more micro-batches than leave two samples to each slice of a rank's part of the batch, where batch norms
/// need two.
void leave_two_samples(const CapturedProgram& program, PlanRequest& request) {
  bool needed = false;
  for (std::size_t i = 0; i < program.graph.ops.size(); ++i)
    needed = needed || takes_one_value(program.plan, OpId::of(i));
  if (!needed) return;
  auto& options = request.options;
  const auto most =
      static_cast<int>(std::min<std::int64_t>(options.max_microbatches, request.batch / request.world / 2));
  options.max_microbatches = std::max(options.min_microbatches, most);
}

/// Batch norms normalise by less than the batch: what a user should know (DESIGN §5). Nothing if they do not.
/// @param samples  of a statistic, of each stage that has some
std::string describe_batch_statistics(const std::set<std::int64_t>& samples, std::int64_t batch) {
  if (samples.empty() || *samples.begin() == batch) return {};
  std::string counts;
  for (const auto count : samples) counts += (counts.empty() ? "" : ", ") + std::to_string(count);
  return "batch norm: each statistic is of " + counts + " of the " + std::to_string(batch) +
         " samples (a micro-batch of a replica); batch_norm = exact takes the whole batch";
}

void note_batch_statistics(Plan& plan, const algebra::BatchSemantics& algebra, std::int64_t batch) {
  std::set<std::int64_t> samples;
  for (const auto& stage : plan.stages) {
    const auto normalises = [&](auto op) {
      return algebra.normalises_by_slice(OpId::of(static_cast<std::size_t>(op)));
    };
    if (std::any_of(stage.ops.begin(), stage.ops.end(), normalises))
      samples.insert(samples_of_slice(batch, plan.microbatches, stage.mesh.replicas()));
  }
  if (const auto note = describe_batch_statistics(samples, batch); !note.empty()) plan.notes.push_back(note);
}

}  // namespace

// Machines that are not there are GPUs where they have a host beside them.
c10::DeviceType Impl::planned_device() const {
  if (!options_.plan_only || options_.cluster_file.empty()) return deployment_.device().type();
  return read_cluster(options_.cluster_file).host ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
}

void Impl::make_plan(PlannedModes& modes, cost::GraphProfile& profile, std::int64_t batch) {
  together(world_, "looking at the files to write", [&] { require_replaceable_files(profile.model.hash); });
  const auto costs = measured_costs(*modes.planned, profile, batch, modes.recorded);
  std::optional<Plan> plan;  // rank 0's
  std::exception_ptr refused;
  const bool may_chunk = may_chunk_heads(*modes.planned), may_cut = may_cut_by_inputs(*modes.planned);
  together(world_, "planning", [&] {
    if (world_.rank() != 0) return;
    try {
      plan = plan_or_read(*modes.planned, profile, batch, costs);
    } catch (const InfeasiblePlan&) {
      if (!may_chunk && !may_cut) throw;
      refused = std::current_exception();
    } catch (const InvalidArgument&) {  // maybe of a number of shards that nothing admits so far
      if (!may_cut) throw;
      refused = std::current_exception();
    }
  });
  if (may_cut) try_layers_by_inputs(modes, profile, batch, costs, plan, refused);
  if (may_chunk) try_chunked_heads(modes, profile, batch, plan, refused);
  Blob bytes;
  together(world_, "planning", [&] {
    if (world_.rank() != 0) return;
    if (!plan) std::rethrow_exception(refused);
    follow(*plan, modes, profile);
    if (is_new_plan()) plan->operators = ops::operators_of_users(modes.planned->graph);
    require_operators_of(modes.planned->graph, *plan);
    require_plan_of(profile, *plan);
    if (!options_.plan_only) {  // before others get it, who would find other faults in it, and sooner
      require_sound(profile.model, *plan);
      require_runnable(*plan, runtime_capabilities());
    }
    bytes = blob_of(to_json(*plan));
  });
  bytes = world_.broadcast(std::move(bytes), Rank(0), "sending the plan");
  together(world_, "planning", [&] {
    if (world_.rank() != 0) {
      plan = parse_plan(text_of(bytes), "the plan of rank 0");
      follow(*plan, modes, profile);
      require_plan_of(profile, *plan);
    }
    deployment_.adopt(*plan);
    if (world_.rank() != 0) return;
    if (is_new_plan() && options_.save_plan)
      write_file("plan_file", options_.plan_file, [&] { write_plan(options_.plan_file, *plan, overwrite()); });
    write_reports(*modes.planned, profile.model);
  });
}

/// The programs and the profile that a plan divides.
void Impl::follow(const Plan& plan, PlannedModes& modes, cost::GraphProfile& profile) const {
  if (plan.chunked_heads && !profile.model.chunked_heads) chunk_heads(modes, profile);
  if (plan.layers_by_inputs && !profile.model.layers_by_inputs)
    profile = modes.profile(planned_device(), tensor_parallel::SingleLayers::kByInputs);
}

/// Neither of two plans fits: what is thrown is of the one that needs less, and says what would do. One that was
/// refused for other reasons, which the other one has not, is not asked for again.
std::exception_ptr Impl::needing_less(const std::exception_ptr& refused, const InfeasiblePlan& other) {
  try {
    std::rethrow_exception(refused);
  } catch (const InfeasiblePlan& first) {
    const bool is_less = other.needed() > Bytes(0) && other.needed() < first.needed();
    return is_less ? std::make_exception_ptr(other) : refused;
  } catch (const InvalidArgument&) {
    return std::make_exception_ptr(other);
  }
}

// libtorch refuses a statistic of one value, with sizes of a slice that the user has never seen.
void Impl::require_statistics(const Call& call) const {
  const auto& program = *call.program;
  const auto& division = program.division;
  std::optional<BatchSplit> split;
  for (std::size_t s = 0; s < division.stage_ops.size(); ++s) {
    for (const auto op : division.stage_ops[s]) {
      if (!takes_one_value(program.plan, op)) continue;
      if (!split) split.emplace(division.pipeline, call.layout);
      for (int m = 0; m < call.layout.microbatches; ++m) {
        for (int q = 0; q < division.pipeline.stages[s].replicas(); ++q) {
          if (split->slice(StageId::of(s), q, m).size() != 1) continue;
          throw InvalidArgument(
              "batch norm '" + program.graph.op(op).path +
              "' normalises by the samples of a micro-batch on a replica, and " + "with a batch of " +
              std::to_string(call.batch) + " samples, microbatches = " + std::to_string(call.layout.microbatches) +
              " and " + std::to_string(division.pipeline.stages[s].replicas()) +
              " replicas of its stage some have one sample, of which there is no variance: bring more samples, set "
              "microbatches or replicas to fewer, or set batch_norm = exact, which takes the whole batch");
        }
      }
    }
  }
}

// Of what is run, which the plan need not have been made of; once.
void Impl::warn_of_batch_statistics(const CapturedProgram& program, std::int64_t batch) {
  if (warned_of_batch_statistics_) return;
  std::set<std::int64_t> samples;
  const auto& division = program.division;
  for (std::size_t s = 0; s < division.stage_ops.size(); ++s) {
    const auto& ops = division.stage_ops[s];
    if (std::any_of(ops.begin(), ops.end(), [&](OpId op) { return program.plan.normalises_by_slice(op); }))
      samples.insert(samples_of_slice(batch, deployment_.plan().microbatches, division.pipeline.stages[s].replicas()));
  }
  const auto text = describe_batch_statistics(samples, batch);
  if (text.empty()) return;
  warned_of_batch_statistics_ = true;
  if (world_.rank() == 0) log_.warn(text + ", as one process does");
}

bool Impl::is_new_plan() const { return !given_plan_ && !reads_plan(); }

bool Impl::reads_plan() const {
  return options_.load_plan && !options_.plan_file.empty() && std::filesystem::exists(options_.plan_file);
}

Plan Impl::plan_or_read(const CapturedProgram& program, const cost::GraphProfile& profile, std::int64_t batch,
                        MeasuredCosts costs) const {
  if (given_plan_) return *given_plan_;
  if (reads_plan()) return read_plan(options_.plan_file);
  return search_plan(program, profile, batch, std::move(costs));
}

Plan Impl::search_plan(const CapturedProgram& program, const cost::GraphProfile& profile, std::int64_t batch,
                       MeasuredCosts costs, Refusals refusals) const {
  const auto cluster = options_.cluster_file.empty() ? describe_cluster(world_, deployment_.device())
                                                     : read_cluster(options_.cluster_file);
  PlanRequest request;
  request.options = options_;
  request.remedies = refusals == Refusals::kWithRemedies;
  request.runtime = runtime_capabilities();
  // Nothing says that whoever steps does so element by element.
  if (optimizers_.empty() && options_.zero < 0) request.runtime.max_zero = 0;
  if (!may_slice() && options_.tensor_parallel == 0) request.runtime.max_tensor_parallel = 1;
  if (optimizers_.empty() && options_.offload == "auto")
    request.runtime.offload = false;  // nor how much state there is
  for (const auto* optimizer : optimizers_) {
    const double factor = parameters::state_factor(*optimizer, options_.zero == 0 ? 1 : world_.size());
    request.options.optimizer_state_factor =
        optimizer == optimizers_.front() ? factor : std::max(request.options.optimizer_state_factor, factor);
  }
  const bool elsewhere = options_.plan_only && !options_.cluster_file.empty();
  request.world = elsewhere ? cluster.devices : world_.size();
  request.batch = elsewhere ? batch / world_.size() * cluster.devices : batch;
  const ProfiledCost model_costs(at_precision(cluster, options_.precision), std::move(costs),
                                 mean_trained_tensor(profile.model));
  if (options_.microbatches == 0) leave_two_samples(program, request);
  const bool is_quiet = !world_.logger(LogModule::kPlanner).enabled(LogLevel::kWarn);
  Progress progress("autopar plans", is_quiet ? ProgressScreen{} : standard_error());
  const PlanObserver observer = [&](const std::string& phase) { progress.now(phase); };
  auto plan = planner_(profile.model, model_costs, cluster, request, observer);
  const bool may_choose = options_.replicas.empty() && options_.microbatches == 0;
  if (may_choose && starves_statistics(plan, program.plan, request.batch)) {
    auto without_replicas = request;
    without_replicas.options.replicas = {1};
    without_replicas.remedies = false;
    try {
      plan = planner_(profile.model, model_costs, cluster, without_replicas, observer);
    } catch (const InfeasiblePlan&) {  // then the first plan runs batches of more samples, and refuses those of so few
    }
  }
  note_batch_statistics(plan, program.plan, request.batch);
  if (options_.precision == "tf32" && deployment_.device().is_cpu()) {
    plan.notes.push_back("precision = tf32 changes nothing on CPUs, which have no such products");
  }
  return plan;
}

/// A plan divides a program by what its operators' definitions say.
void Impl::require_operators_of(const OpGraph& graph, const Plan& plan) {
  const auto text = [](const std::vector<std::string>& operators) {
    std::string all;
    for (const auto& one : operators) all += (all.empty() ? "" : ", ") + one;
    return all.empty() ? "none" : all;
  };
  const auto own = ops::operators_of_users(graph);
  if (own == plan.operators) return;
  throw InvalidArgument("the plan was made with other registered operators and versions: " + text(plan.operators) +
                        ", and this program has " + text(own) + "; remove the plan to plan again");
}

void Impl::require_plan_of(const cost::GraphProfile& profile, const Plan& plan) const {
  if (plan.precision != options_.precision) {
    throw InvalidArgument("the plan was made for precision = " + plan.precision + ", but precision = " +
                          options_.precision + " is set; set it to the plan's, or remove the plan to plan again");
  }
  if (options_.class_head != "auto" && plan.chunked_heads != (options_.class_head == "chunked")) {
    throw InvalidArgument(
        "the plan makes logits of class heads " + std::string(plan.chunked_heads ? "in chunks" : "whole") +
        ", but class_head = " + options_.class_head + " is set; set it to auto, or remove the plan to plan again");
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
}

/// Before anything is measured or planned for them.
void Impl::require_replaceable_files(std::uint64_t model) const {
  const auto require = [&](const std::filesystem::path& path, const char* kind) {
    if (!path.empty()) require_replaceable(path, file_mark(kind, model), overwrite());
  };
  require(trace_path(), "trace");
  if (world_.rank() != 0) return;
  if (!given_plan_ && !reads_plan() && options_.save_plan) require(options_.plan_file, "plan");
  require(options_.graph_file, "graph");
  require(options_.profile_file, "profile");
  require(options_.report_file, "report");
}

void Impl::write_reports(const CapturedProgram& program, const ModelProfile& profile) {
  const auto& plan = deployment_.plan();
  const auto graph_mark = file_mark("graph", plan.model), report_mark = file_mark("report", plan.model);
  write_file("graph_file", options_.graph_file, [&] {
    const auto text = program.shown ? to_dot(program.shown->graph, graph_mark + "\n// " + program.shown->title())
                                    : to_dot(program.graph, graph_mark, plan.stages);
    write_marked_file(options_.graph_file, text, graph_mark, overwrite());
    if (program.shown) log_.warn(options_.graph_file + " has " + program.shown->title());
  });
  write_file("profile_file", options_.profile_file,
             [&] { write_profile(options_.profile_file, profile, overwrite()); });
  write_file("report_file", options_.report_file, [&] {
    write_marked_file(options_.report_file, report_mark + "\n" + to_text(plan), report_mark, overwrite());
  });
  world_.logger(LogModule::kPlanner).write_table(LogLevel::kInfo, to_text(plan));
}

/// Who asks for nothing but files, by plan_only, cannot do without them.
void Impl::write_file(const char* option, const std::string& path, const std::function<void()>& write) {
  if (path.empty()) return;
  if (options_.plan_only)
    write();
  else
    files_.write(option, write);
}

}  // namespace autopar::session
