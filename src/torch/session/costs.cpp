#include "torch/session/session_impl.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/io/cost_file.hpp>
#include <autopar/torch/device.hpp>
#include <autopar/torch/optim/fused.hpp>
#include <autopar/torch/optim/lamb.hpp>
#include <autopar/torch/optim/lars.hpp>

#include "torch/cost/measured/profiler.hpp"

namespace autopar {

namespace {

/// Whether the links of such a world were never measured. What spans the world names its size. The same on every rank.
bool lacks_links(const MeasuredLinks& links, const World& world) {
  return world.size() > 1 && !links.messages.contains(world.size());
}

/// Whether it is one of `autopar::optim`.
bool steps_at_once(const torch::optim::Optimizer* optimizer) {
  return dynamic_cast<const optim::SGD*>(optimizer) != nullptr ||
         dynamic_cast<const optim::Adam*>(optimizer) != nullptr ||
         dynamic_cast<const optim::AdamW*>(optimizer) != nullptr ||
         dynamic_cast<const optim::LAMB*>(optimizer) != nullptr ||
         dynamic_cast<const optim::LARS*>(optimizer) != nullptr;
}

}  // namespace

/// @param recorded  see PlannedModes
MeasuredCosts Session::Impl::measured_costs(const CapturedProgram& program, const GraphProfile& profile,
                                            std::int64_t batch, bool recorded) {
  if (options_.costs == "roofline" || (options_.costs == "auto" && !deployment_.device().is_cuda())) return {};
  if (options_.costs == "auto" && leaves_no_choice(program, profile, batch)) return {};
  const auto here = describe_cluster(world_, deployment_.device());
  auto origin = cost_origin(world_, here, deployment_.device());
  if (options_.precision == "tf32") origin.device += ", tf32";
  if (recorded) origin.device += ", recorded steps";
  std::string decision;  // rank 0's, who alone looks at files: nothing to measure, or the costs that it knows
  together(world_, "reading measured costs", [&] {
    if (world_.rank() == 0 && !given_plan_ && !reads_plan()) decision = to_json(cached_costs(origin), {});
  });
  decision = text_of(world_.broadcast(blob_of(decision), Rank(0), "sharing known costs"));
  if (decision.empty()) return {};
  const auto known = parse_costs(decision, "the costs of rank 0", {});

  MeasureOptions measure;
  measure.samples = probe_samples(batch, world_.size());
  measure.adds_gradients = world_.size() > 1;
  measure.recorded = recorded;
  auto costs = measure_atoms(world_, program.graph, program.plan, profile, deployment_.device(), measure, known);
  const bool given_links = !options_.cluster_file.empty();
  if (!given_links && lacks_links(known.links, world_)) {
    auto wire = deployment_.new_transport();
    auto links = measure_links(world_, wire, here, deployment_.device());
    links.messages.merge(costs.links.messages);
    links.all_reduces.merge(costs.links.all_reduces);
    costs.links = std::move(links);
  }
  const bool at_once = !optimizers_.empty() && std::ranges::all_of(optimizers_, steps_at_once);
  auto& updates = at_once ? costs.joint_updates : costs.updates;
  if (updates.empty()) updates = measure_updates(world_, deployment_.device(), at_once);
  if (costs.host == MeasuredHost{}) costs.host = measure_host(world_, deployment_.device());
  together(world_, "writing measured costs", [&] {
    if (world_.rank() == 0 && costs != known) keep_costs(costs, origin);
  });
  if (given_links) costs.links = {};
  if (at_once) costs.updates = costs.joint_updates;
  return costs;
}

/// Whether one device holds the model as it is: the plan is to run it, whatever it costs. Or nothing does, which the
/// planner is about to say.
bool Session::Impl::leaves_no_choice(const CapturedProgram& program, const GraphProfile& profile,
                                     std::int64_t batch) const {
  const bool elsewhere = options_.plan_only && !options_.cluster_file.empty();
  if (world_.size() > 1 || elsewhere || given_plan_ || reads_plan()) return false;
  Plan plan;
  try {
    plan = search_plan(program, profile, batch, {});
  } catch (const InfeasiblePlan&) {
    return true;
  }
  const bool fewest = options_.microbatches > 0 || plan.microbatches <= options_.min_microbatches;
  const auto recomputes = [](const StagePlan& stage) { return !stage.recomputed.empty(); };
  return plan.stages.size() == 1 && fewest && plan.offload == Offload::kNone &&
         std::ranges::none_of(plan.stages, recomputes);
}

/// Empty: nowhere. A cache of its own for each host, as links are measured between this one and its neighbours.
std::filesystem::path Session::Impl::cost_path(const CostOrigin& origin) const {
  if (!options_.cost_file.empty()) return options_.cost_file == "none" ? std::string() : options_.cost_file;
  if (cache_folder_.empty()) return {};
  std::array<char, 256> host{};
  static_cast<void>(gethostname(host.data(), host.size() - 1));
  const auto key = hash_text(origin.device + '\n' + origin.libtorch + '\n' + origin.autopar + '\n' + host.data());
  return std::filesystem::path(cache_folder_) / ("costs-" + std::to_string(key) + ".json");
}

MeasuredCosts Session::Impl::cached_costs(const CostOrigin& origin) const {
  const auto path = cost_path(origin);
  std::error_code unreadable;
  if (path.empty() || !std::filesystem::exists(path, unreadable)) return {};
  if (!options_.cost_file.empty()) require_replaceable(path, kCostMark, overwrite());
  try {
    return read_costs(path, origin);
  } catch (const ConfigError& error) {
    world_.logger(LogModule::kProfiler).warn(std::string("costs are measured anew: ") + error.what());
    return {};
  }
}

/// Where the user named no file, one that cannot be written is no error: the next run measures again.
void Session::Impl::keep_costs(MeasuredCosts costs, const CostOrigin& origin) const {
  const auto path = cost_path(origin);
  if (path.empty()) return;
  if (!options_.cost_file.empty()) return write_costs(path, costs, origin, overwrite());
  try {
    std::filesystem::create_directories(path.parent_path());
    costs.atoms.merge(cached_costs(origin).atoms);      // what another program measured meanwhile
    write_costs(path, costs, origin, Overwrite::kAny);  // of an earlier version, too
  } catch (const std::exception& error) {
    world_.logger(LogModule::kProfiler).info(std::string("measured costs are not kept: ") + error.what());
  }
}

}  // namespace autopar
