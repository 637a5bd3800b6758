// What is planned, or read, and on which costs.
#include "torch/session/session_impl.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include <autopar/core/error.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/profile_file.hpp>
#include <autopar/plan/print.hpp>
#include <autopar/plan/runnable.hpp>
#include <autopar/torch/device.hpp>

#include "torch/session/graph_dot.hpp"

namespace autopar {

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

}  // namespace

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

}  // namespace autopar
