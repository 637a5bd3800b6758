#include "torch/session/session_impl.hpp"

#include <filesystem>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/io/cost_file.hpp>
#include <autopar/torch/device.hpp>
#include <autopar/torch/profiler.hpp>

namespace autopar {

namespace {

/// Whether the links of such a world were never measured. What spans the world names its size. The same on every rank.
bool lacks_links(const MeasuredLinks& links, const World& world) {
  return world.size() > 1 && !links.messages.contains(world.size());
}

}  // namespace

MeasuredCosts Session::Impl::measured_costs(const CapturedProgram& program, const GraphProfile& profile,
                                            std::int64_t batch) {
  if (options_.costs == "roofline" || (options_.costs == "auto" && !device_.is_cuda())) return {};
  const auto here = describe_cluster(world_, device_);
  auto origin = cost_origin(world_, here, device_);
  if (options_.precision == "tf32") origin.device += ", tf32";
  std::string decision;  // rank 0's, who alone looks at files: nothing to measure, or the costs that it knows
  together(world_, "reading measured costs", [&] {
    if (world_.rank() == 0 && !given_plan_ && !reads_plan()) decision = to_json(cached_costs(origin), {});
  });
  decision = text_of(world_.broadcast(blob_of(decision), Rank(0), "sharing known costs"));
  if (decision.empty()) return {};
  const auto known = parse_costs(decision, "the costs of rank 0", {});

  MeasureOptions measure;
  measure.samples = probe_samples(batch, world_.size());
  auto costs = measure_atoms(world_, program.graph, program.plan, profile, device_, measure, known);
  const bool given_links = !options_.cluster_file.empty();
  if (!given_links && lacks_links(known.links, world_)) {
    auto wire = new_transport();
    auto links = measure_links(world_, wire, here, device_);
    links.messages.merge(costs.links.messages);
    links.all_reduces.merge(costs.links.all_reduces);
    costs.links = std::move(links);
  }
  if (costs.updates.empty()) costs.updates = measure_updates(world_, device_);
  if (costs.host == MeasuredHost{}) costs.host = measure_host(world_, device_);
  together(world_, "writing measured costs", [&] {
    if (world_.rank() != 0 || options_.cost_file.empty() || costs == known) return;
    write_costs(options_.cost_file, costs, origin);
  });
  if (given_links) costs.links = {};
  return costs;
}

MeasuredCosts Session::Impl::cached_costs(const CostOrigin& origin) const {
  if (options_.cost_file.empty() || !std::filesystem::exists(options_.cost_file)) return {};
  try {
    return read_costs(options_.cost_file, origin);
  } catch (const ConfigError& error) {
    world_.logger(LogModule::kProfiler).warn(std::string("costs are measured anew: ") + error.what());
    return {};
  }
}

}  // namespace autopar
