#include "torch/planning/device_costs.hpp"

#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/io/checksum.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/host_name.hpp>
#include <autopar/plan/text.hpp>
#include <autopar/torch/device.hpp>

#include "torch/cost/measured/profiler.hpp"
#include "torch/planning/plan_files.hpp"
#include "torch/ranks/collective_try.hpp"

namespace autopar::planning {

namespace fs = std::filesystem;

namespace {

/// Whether the links of such a world were never measured. What spans the world names its size. The same on every rank.
bool lacks_links(const MeasuredLinks& links, const World& world) {
  return world.size() > 1 && !links.messages.contains(world.size());
}

/// In the user's cache: one for each host, as links are measured between this one and its neighbours.
std::string cached_name(const CostOrigin& origin) {
  const auto text = origin.device + '\n' + origin.libtorch + '\n' + origin.autopar + '\n' + host_name();
  return "costs-" + std::to_string(checksum(std::as_bytes(std::span(text))));
}

/// What a first call measures, and how long each part takes.
class TimedParts {
 public:
  /// Calls `work`.
  template <class Work>
  void on(const std::string& what, const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    text_ += (text_.empty() ? "" : ", ") + what + " in " + readable(Seconds(taken.count()));
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

bool DeviceCosts::measures() const {
  const CostChoice costs = setting_.options.costs;
  return costs == CostChoice::kProfiled || (costs == CostChoice::kAuto && setting_.device.is_cuda());
}

Cluster DeviceCosts::cluster() const {
  const auto& options = setting_.options;
  return options.cluster_file.empty() ? describe_cluster(world_, setting_.device) : read_cluster(options.cluster_file);
}

MeasuredCosts DeviceCosts::costs(const ModelProgram& program, const cost::GraphProfile& profile, std::int64_t batch,
                                 bool recorded) {
  const auto& options = setting_.options;
  const auto device = setting_.device;
  if (!measures()) return {};
  const auto here = describe_cluster(world_, device);
  auto origin = cost::cost_origin(world_, here, device);
  if (options.precision == Precision::kTf32) origin.device += ", tf32";
  if (recorded) origin.device += ", recorded steps";
  std::string text;  // rank 0 alone looks at files
  ranks::collective_try(world_, "reading measured costs", [&] {
    if (world_.rank() == 0) text = to_json(kept_costs(origin), {});
  });
  text = ranks::text_of(world_.broadcast(ranks::blob_of(text), Rank(0), "sharing known costs"));
  const auto known = parse_costs(text, "the costs of rank 0", {});

  cost::MeasureOptions measure;
  measure.samples = cost::probe_samples(batch, world_.size());
  measure.recorded = recorded;
  MeasuredCosts costs;
  TimedParts spent;
  spent.on("operators",
           [&] { costs = cost::measure_atoms(world_, program.graph, program.plan, profile, device, measure, known); });
  const bool given_links = !options.cluster_file.empty();
  if (!given_links && lacks_links(known.links, world_)) {
    spent.on("links", [&] {
      auto wire = setting_.new_transport();
      auto links = cost::measure_links(world_, wire, here, device);
      links.messages.merge(costs.links.messages);
      links.all_reduces.merge(costs.links.all_reduces);
      links.contention.merge(costs.links.contention);
      links.message_delays.merge(costs.links.message_delays);
      costs.links = std::move(links);
    });
  }
  const bool at_once = setting_.steps_at_once;
  auto& updates = at_once ? costs.joint_updates : costs.updates;
  if (updates.empty()) spent.on("optimizers", [&] { updates = cost::measure_updates(world_, device, at_once); });
  if (!device.is_cpu() && costs.host == MeasuredHost{})
    spent.on("the host", [&] { costs.host = cost::measure_host(world_, device); });
  const bool is_new = world_.rank() == 0 && costs != known;
  if (is_new) world_.logger(LogModule::kProfiler).info("measured " + spent.text());
  ranks::collective_try(world_, "writing measured costs", [&] {
    if (is_new) keep(costs, origin);
  });
  if (given_links) costs.links = {};
  if (at_once) costs.updates = costs.joint_updates;
  return costs;
}

MeasuredCosts DeviceCosts::kept_costs(const CostOrigin& origin) const {
  const fs::path named = setting_.options.cost_file;
  std::error_code unreadable;
  if (named == "none" || (!named.empty() && !fs::exists(named, unreadable))) return {};
  if (!named.empty()) require_replaceable(named, kCostMark, overwrite_of(setting_.options));
  try {
    if (!named.empty()) return read_costs(named, origin);
    const auto name = cached_name(origin);
    const auto text = setting_.cache.costs ? setting_.cache.costs->read(name) : std::nullopt;
    return text ? parse_costs(*text, (setting_.cache.costs->path() / name).string(), origin) : MeasuredCosts{};
  } catch (const ConfigError& error) {
    world_.logger(LogModule::kProfiler).warn(std::string("costs are measured anew: ") + error.what());
    return {};
  }
}

void DeviceCosts::keep(MeasuredCosts costs, const CostOrigin& origin) {
  const auto& named = setting_.options.cost_file;
  if (named == "none") return;
  if (!named.empty()) {
    setting_.files.write("cost_file", [&] { write_costs(named, costs, origin, overwrite_of(setting_.options)); });
    return;
  }
  if (!setting_.cache.costs) return;
  costs.atoms.merge(kept_costs(origin).atoms);  // what another program measured meanwhile
  setting_.cache.costs->write(cached_name(origin), to_json(costs, origin));
}

}  // namespace autopar::planning
