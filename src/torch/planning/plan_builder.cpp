#include "torch/planning/plan_builder.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/progress.hpp>
#include <autopar/plan/option_text.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/runnable.hpp>
#include <autopar/plan/text.hpp>
#include <autopar/plan/verify/require_sound.hpp>

#include "ops/registry.hpp"
#include "torch/fused/linear_cross_entropy.hpp"
#include "torch/planning/batch_statistics.hpp"
#include "torch/ranks/collective_try.hpp"
#include "torch/tensor_parallel/tensor_candidates.hpp"

namespace autopar::planning {

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

ProfiledCost model_costs(const Cluster& cluster, const Options& options, MeasuredCosts costs,
                         const ModelProfile& profile) {
  return {at_precision(cluster, options.precision), std::move(costs), mean_trained_tensor(profile)};
}

/// A plan divides a program by what its operators' definitions say.
void require_operators_of(const OpGraph& graph, const Plan& plan) {
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

/// For machines of a cluster file, which are not here.
bool plans_elsewhere(const Options& options) { return options.plan_only && !options.cluster_file.empty(); }

/// Chunks take more time, and pay where memory is what a faster plan lacks.
/// @param logits  bytes of a rank's samples
bool gains_from_chunks(double logits, const Plan* whole) {
  if (whole == nullptr) return true;
  constexpr double kLargeLogits = 1.0 / 32;  // of a device's memory
  const auto memory = static_cast<double>(whole->device_memory.value());
  if (logits < kLargeLogits * memory) return false;
  return std::any_of(whole->stages.begin(), whole->stages.end(), [&](const StagePlan& stage) {
    return static_cast<double>(stage.peak_memory.value()) > memory / 2 || !stage.recomputed.empty();
  });
}

}  // namespace

// Machines that are not there are GPUs where they have a host beside them.
c10::DeviceType planned_device(const Options& options, c10::Device device) {
  if (!plans_elsewhere(options)) return device.type();
  return read_cluster(options.cluster_file).host ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
}

bool PlanBuilder::is_elsewhere() const { return plans_elsewhere(options_); }

std::optional<ProfiledCost> PlanBuilder::prepare(const ModelPrograms& programs, const cost::GraphProfile& profile,
                                                 std::int64_t batch, const Optimizers& optimizers, Cluster& cluster,
                                                 PlanRequest& request) {
  ranks::collective_try(ranks_, "planning", [&] {
    if (!ranks_.is_first()) return;
    cluster = costs_.cluster();
    request = request_of(*programs.planned, cluster, batch, optimizers);
  });
  const bool may_slice = options_.inference || optimizers.attached;
  const auto measured = costs_of(programs, profile, batch, cluster, request);
  auto chunked = chunked_variant(programs, batch, cluster, request);
  std::optional<ProfiledCost> costs;
  ranks::collective_try(ranks_, "planning", [&] {
    if (!ranks_.is_first()) return;
    costs.emplace(model_costs(cluster, options_, measured, profile.model));
    if (!measured.empty()) request.ties = kMeasuredTies;
    auto row_parallel = row_parallel_variant(programs, measured, cluster, may_slice);
    if (row_parallel) request.variants.push_back(*std::move(row_parallel));
    if (chunked) request.variants.push_back(*std::move(chunked));
  });
  return costs;
}

Plan PlanBuilder::build(ModelPrograms& programs, cost::GraphProfile& profile, std::int64_t batch,
                        const Optimizers& optimizers, const std::filesystem::path& trace,
                        const std::optional<Plan>& given) {
  std::string known;  // rank 0, which alone looks at files, has a plan
  ranks::collective_try(ranks_, "looking at the files to write", [&] {
    known = given || files_.has_plan(ranks_.size()) ? "plan" : "";
    if (known.empty() && ranks_.is_first() && files_.is_of_other_start(ranks_.size()))
      ranks_.logger(LogModule::kPlanner)
          .warn("planning again for " + std::to_string(ranks_.size()) + " ranks; '" + options_.plan_file +
                "' has the plan for those of an earlier start");
    files_.require_replaceable(profile.model.hash, trace, ranks_.is_first(), known.empty());
  });
  known = ranks::text_of(ranks_.broadcast(ranks::blob_of(known), Rank(0), "looking for a plan"));
  const bool is_new = known.empty();

  PlanRequest request;
  std::optional<ProfiledCost> costs;
  Cluster cluster;
  if (is_new) costs = prepare(programs, profile, batch, optimizers, cluster, request);

  std::optional<Plan> plan;
  Blob bytes;
  ranks::collective_try(ranks_, "planning", [&] {
    if (!ranks_.is_first()) return;
    if (is_new) {
      const bool is_quiet = !ranks_.logger(LogModule::kPlanner).enabled(LogLevel::kWarn);
      Progress progress("autopar plans", is_quiet ? ProgressScreen{} : standard_error());
      plan = plan_of(
          planner_(profile.model, *costs, cluster, request, [&](const std::string& phase) { progress.now(phase); }));
      note_batch_statistics(*plan, programs.planned->plan, request.batch);
      if (options_.precision == Precision::kTf32 && device_.is_cpu())
        plan->notes.push_back("precision = tf32 changes nothing on CPUs, which have no such products");
      plan->operators = ops::operators_of_users(programs.planned->graph);
    } else {
      plan = given ? *given : files_.plan();
    }
    follow(*plan, programs, profile);
    if (!costs && files_.shows_costs()) costs.emplace(model_costs(costs_.cluster(), options_, {}, profile.model));
    require_operators_of(programs.planned->graph, *plan);
    require_plan_of(profile, *plan);
    if (!options_.plan_only) {  // before others get it, who would find other faults in it, and sooner
      require_sound(profile.model, *plan);
      require_runnable(*plan, runtime_capabilities());
    }
    bytes = ranks::blob_of(to_json(*plan));
  });
  bytes = ranks_.broadcast(std::move(bytes), Rank(0), "sending the plan");
  ranks::collective_try(ranks_, "planning", [&] {
    if (!ranks_.is_first()) {
      plan = parse_plan(ranks::text_of(bytes), "the plan of rank 0");
      follow(*plan, programs, profile);
      require_plan_of(profile, *plan);
      return;
    }
    files_.write(*plan, is_new, *programs.planned, profile.model, costs ? &*costs : nullptr,
                 ranks_.logger(LogModule::kPlanner), ranks_.logger(LogModule::kSession));
  });
  return *std::move(plan);
}

PlanRequest PlanBuilder::request_of(const ModelProgram& program, const Cluster& cluster, std::int64_t batch,
                                    const Optimizers& optimizers) const {
  PlanRequest request;
  request.options = options_;
  request.runtime = runtime_capabilities();
  if (optimizers.attached) {
    request.options.optimizer_state_factor = optimizers.state_factor;
  } else {  // nobody says how much state there is, nor that it is stepped element by element
    if (options_.zero < 0) request.runtime.max_zero = 0;
    if (!options_.inference && options_.tensor_parallel == 0) request.runtime.max_tensor_parallel = 1;
    if (!options_.offload) request.runtime.offload = false;
  }
  request.world = is_elsewhere() ? cluster.devices : ranks_.size();
  request.batch = is_elsewhere() ? batch / ranks_.size() * cluster.devices : batch;
  if (options_.microbatches == 0) leave_two_samples(program.graph, program.plan, request);
  if (options_.replicas.empty() && options_.microbatches == 0) {
    request.starves = [&semantics = program.plan, samples = request.batch](const Plan& plan) {
      return starves_statistics(plan, semantics, samples);
    };
  }
  return request;
}

MeasuredCosts PlanBuilder::costs_of(const ModelPrograms& programs, const cost::GraphProfile& profile,
                                    std::int64_t batch, const Cluster& cluster, const PlanRequest& request) {
  if (!costs_.measures()) return {};
  const bool is_alone = ranks_.size() == 1 && !is_elsewhere();
  if (options_.costs == CostChoice::kAuto && is_alone && !depends_on_costs(profile.model, cluster, request)) return {};
  return costs_.costs(*programs.planned, profile, batch, programs.recorded);
}

std::optional<ProgramVariant> PlanBuilder::chunked_variant(const ModelPrograms& programs, std::int64_t batch,
                                                           const Cluster& cluster, const PlanRequest& request) {
  if (options_.class_head != ClassHead::kAuto) return std::nullopt;
  const double logits = fused::bytes_of_chunked_logits(
      programs.planned->graph, std::max<std::int64_t>(1, batch / ranks_.size()));  // of a rank's samples
  constexpr double kOfManyChunks = 4 * fused::kLeastLogitsChunk * sizeof(float);
  if (logits < kOfManyChunks) return std::nullopt;
  std::vector<ModelProgram> copies;
  ModelPrograms chunked;
  cost::GraphProfile profile;
  ranks::collective_try(ranks_, "profiling the model", [&] {
    copies.reserve(programs.others.size() + 1);
    const auto copy = [&](const ModelProgram& program) {
      return &copies.emplace_back(ModelProgram{{}, program.graph, {}, program.plan});
    };
    chunked.planned = copy(*programs.planned);
    for (const auto* other : programs.others) chunked.others.push_back(copy(*other));
    chunked.recorded = programs.recorded;
    chunked.in_8_bits = programs.in_8_bits;
    chunked.chunk_logits(algebra_options(options_));
    profile = chunked.profile(planned_device(options_, device_));
  });
  auto measured = costs_of(chunked, profile, batch, cluster, request);
  if (!ranks_.is_first()) return std::nullopt;
  auto costs = model_costs(cluster, options_, std::move(measured), profile.model);
  ProgramVariant variant{std::move(profile.model), std::move(costs)};
  variant.is_worth = [logits](const Plan* whole) { return gains_from_chunks(logits, whole); };
  variant.chosen_note = [](std::optional<Seconds> whole) {
    return "logits of class heads are made in chunks; whole " +
           (whole ? "they would take " + readable(*whole) + " a step" : "they do not fit");
  };
  variant.passed_note = [](Seconds own) { return "class_head = chunked would take " + readable(own) + " a step"; };
  return variant;
}

// Where such layers are a small part of the model, a second plan is not worth its search.
std::optional<ProgramVariant> PlanBuilder::row_parallel_variant(const ModelPrograms& programs,
                                                                const MeasuredCosts& costs, const Cluster& cluster,
                                                                bool may_slice) const {
  if (options_.tensor_parallel == 1 || (ranks_.size() == 1 && !is_elsewhere())) return std::nullopt;
  if (options_.tensor_parallel == 0 && !may_slice) return std::nullopt;
  constexpr double kLargePart = 1.0 / 8;  // of the parameters
  if (tensor_parallel::share_by_inputs(programs.planned->graph, programs.planned->plan) < kLargePart)
    return std::nullopt;
  auto profile = programs.profile(planned_device(options_, device_), tensor_parallel::SingleLayers::kByInputs);
  auto own = model_costs(cluster, options_, costs, profile.model);
  ProgramVariant variant{std::move(profile.model), std::move(own)};
  variant.chosen_note = [](std::optional<Seconds> other) {
    return "single linear layers are cut by inputs; otherwise " +
           (other ? "a step would take " + readable(*other) : "there is no plan");
  };
  return variant;
}

void PlanBuilder::follow(const Plan& plan, ModelPrograms& programs, cost::GraphProfile& profile) const {
  if (plan.chunked_heads && !profile.model.chunked_heads) {
    programs.chunk_logits(algebra_options(options_));
    profile = programs.profile(planned_device(options_, device_));
  }
  if (plan.layers_by_inputs && !profile.model.layers_by_inputs)
    profile = programs.profile(planned_device(options_, device_), tensor_parallel::SingleLayers::kByInputs);
}

void PlanBuilder::require_plan_of(const cost::GraphProfile& profile, const Plan& plan) const {
  if (plan.precision != options_.precision) {
    throw InvalidArgument("the plan was made for precision = " + option_text(plan.precision) +
                          ", but precision = " + option_text(options_.precision) +
                          " is set; set it to the plan's, or remove the plan to plan again");
  }
  if (options_.reduce_dtype.value_or(plan.buckets.reduce_dtype) != plan.buckets.reduce_dtype) {
    throw InvalidArgument("the plan was made for reduce_dtype = " + std::string(to_string(plan.buckets.reduce_dtype)) +
                          ", but reduce_dtype = " + option_text(options_.reduce_dtype) +
                          " is set; set it to the plan's, or remove the plan to plan again");
  }
  if (options_.class_head != ClassHead::kAuto && plan.chunked_heads != (options_.class_head == ClassHead::kChunked)) {
    throw InvalidArgument("the plan makes logits of class heads " +
                          std::string(plan.chunked_heads ? "in chunks" : "whole") +
                          ", but class_head = " + option_text(options_.class_head) +
                          " is set; set it to auto, or remove the plan to plan again");
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
  if (plan.world != ranks_.size() && !options_.plan_only) {
    throw InvalidArgument("the plan was made for " + std::to_string(plan.world) + " ranks, but the world has " +
                          std::to_string(ranks_.size()) + "; start as many ranks, or remove the plan to plan again");
  }
}

}  // namespace autopar::planning
