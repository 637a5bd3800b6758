#include "torch/session/session_impl.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/io/cost_file.hpp>
#include <autopar/torch/device.hpp>
#include <autopar/torch/optim/fused.hpp>
#include <autopar/torch/optim/lamb.hpp>
#include <autopar/torch/optim/lars.hpp>

#include "torch/cost/measured/profiler.hpp"

namespace autopar::session {

namespace fs = std::filesystem;

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
MeasuredCosts Impl::measured_costs(const CapturedProgram& program, const cost::GraphProfile& profile,
                                   std::int64_t batch, bool recorded) {
  if (options_.costs == "roofline" || (options_.costs == "auto" && !deployment_.device().is_cuda())) return {};
  if (options_.costs == "auto" && leaves_no_choice(program, profile, batch)) return {};
  const auto here = describe_cluster(world_, deployment_.device());
  auto origin = cost::cost_origin(world_, here, deployment_.device());
  if (options_.precision == "tf32") origin.device += ", tf32";
  if (recorded) origin.device += ", recorded steps";
  std::string decision;  // rank 0's, who alone looks at files: nothing to measure, or the costs that it knows
  together(world_, "reading measured costs", [&] {
    if (world_.rank() == 0 && !given_plan_ && !reads_plan()) decision = to_json(cached_costs(origin), {});
  });
  decision = text_of(world_.broadcast(blob_of(decision), Rank(0), "sharing known costs"));
  if (decision.empty()) return {};
  const auto known = parse_costs(decision, "the costs of rank 0", {});

  cost::MeasureOptions measure;
  measure.samples = cost::probe_samples(batch, world_.size());
  measure.adds_gradients = world_.size() > 1;
  measure.recorded = recorded;
  auto costs = cost::measure_atoms(world_, program.graph, program.plan, profile, deployment_.device(), measure, known);
  const bool given_links = !options_.cluster_file.empty();
  if (!given_links && lacks_links(known.links, world_)) {
    auto wire = deployment_.new_transport();
    auto links = cost::measure_links(world_, wire, here, deployment_.device());
    links.messages.merge(costs.links.messages);
    links.all_reduces.merge(costs.links.all_reduces);
    costs.links = std::move(links);
  }
  const bool at_once = !optimizers_.empty() && std::ranges::all_of(optimizers_, steps_at_once);
  auto& updates = at_once ? costs.joint_updates : costs.updates;
  if (updates.empty()) updates = cost::measure_updates(world_, deployment_.device(), at_once);
  if (costs.host == MeasuredHost{}) costs.host = cost::measure_host(world_, deployment_.device());
  together(world_, "writing measured costs", [&] {
    if (world_.rank() == 0 && costs != known) keep_costs(costs, origin);
  });
  if (given_links) costs.links = {};
  if (at_once) costs.updates = costs.joint_updates;
  return costs;
}

/// Whether one device holds the model as it is: the plan is to run it, whatever it costs. Or nothing does, which the
/// planner is about to say.
bool Impl::leaves_no_choice(const CapturedProgram& program, const cost::GraphProfile& profile,
                            std::int64_t batch) const {
  const bool elsewhere = options_.plan_only && !options_.cluster_file.empty();
  if (world_.size() > 1 || elsewhere || given_plan_ || reads_plan()) return false;
  Plan plan;
  try {
    plan = search_plan(program, profile, batch, {}, Refusals::kBare);
  } catch (const InfeasiblePlan&) {
    return true;
  }
  const bool fewest = options_.microbatches > 0 || plan.microbatches <= options_.min_microbatches;
  const auto recomputes = [](const StagePlan& stage) { return !stage.recomputed.empty(); };
  return plan.stages.size() == 1 && fewest && plan.offload == Offload::kNone &&
         std::ranges::none_of(plan.stages, recomputes);
}

/// In the user's cache: one for each host, as links are measured between this one and its neighbours.
std::string Impl::cached_name(const CostOrigin& origin) {
  std::array<char, 256> host{};
  static_cast<void>(gethostname(host.data(), host.size() - 1));
  return "costs-" +
         std::to_string(hash_text(origin.device + '\n' + origin.libtorch + '\n' + origin.autopar + '\n' + host.data()));
}

MeasuredCosts Impl::cached_costs(const CostOrigin& origin) const {
  const fs::path named = options_.cost_file;
  std::error_code unreadable;
  if (named == "none" || (!named.empty() && !fs::exists(named, unreadable))) return {};
  if (!named.empty()) require_replaceable(named, kCostMark, overwrite());
  try {
    if (!named.empty()) return read_costs(named, origin);
    const auto name = cached_name(origin);
    const auto text = cache_.costs ? cache_.costs->read(name) : std::nullopt;
    return text ? parse_costs(*text, (cache_.costs->path() / name).string(), origin) : MeasuredCosts{};
  } catch (const ConfigError& error) {
    world_.logger(LogModule::kProfiler).warn(std::string("costs are measured anew: ") + error.what());
    return {};
  }
}

void Impl::keep_costs(MeasuredCosts costs, const CostOrigin& origin) {
  if (options_.cost_file == "none") return;
  if (!options_.cost_file.empty()) {
    files_.write("cost_file", [&] { write_costs(options_.cost_file, costs, origin, overwrite()); });
    return;
  }
  if (!cache_.costs) return;
  costs.atoms.merge(cached_costs(origin).atoms);  // what another program measured meanwhile
  cache_.costs->write(cached_name(origin), to_json(costs, origin));
}

}  // namespace autopar::session
