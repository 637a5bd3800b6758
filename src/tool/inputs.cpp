#include "inputs.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <autopar/core/error.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/cost_file.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/profile_file.hpp>

namespace autopar::tool {

namespace {

constexpr std::int64_t kMostRanks = 1 << 16;
constexpr std::int64_t kMostSamples = std::int64_t{1} << 36;
constexpr std::int64_t kMostComputes = 1 << 22;  // micro-batches x ranks of one simulated step

std::string name_of_atom(const ModelProfile& profile, NodeId atom) {
  const OpProfile& op = profile.graph[atom];
  return "atom " + std::to_string(atom.value()) + " '" + op.name + "'" +
         (op.path.empty() ? "" : " (near " + op.path + ")");
}

/// Atoms that are joined by values, by the caller's inputs or by its results.
class Pieces {
 public:
  explicit Pieces(const ModelProfile& profile) : parent_(profile.graph.node_count() + 2) {
    std::iota(parent_.begin(), parent_.end(), std::size_t{0});
    const std::size_t inputs = parent_.size() - 2, results = parent_.size() - 1;
    for (const EdgeId edge : profile.graph.edges())
      join(profile.graph.source(edge).index(), profile.graph.target(edge).index());
    for (const auto& input : profile.inputs) {
      for (const NodeId reader : input.readers) join(reader.index(), inputs);
    }
    for (const auto& output : profile.outputs) join(output.writer.index(), results);
  }
  [[nodiscard]] std::size_t of(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }

 private:
  void join(std::size_t a, std::size_t b) { parent_[of(a)] = of(b); }
  std::vector<std::size_t> parent_;
};

void require_one_piece(const ModelProfile& profile, const std::string& path) {
  Pieces pieces(profile);
  std::vector<std::size_t> sizes(profile.graph.node_count() + 2, 0);
  for (const NodeId atom : profile.graph.nodes()) ++sizes[pieces.of(atom.index())];
  NodeId smallest(0);
  for (const NodeId atom : profile.graph.nodes()) {
    if (sizes[pieces.of(atom.index())] < sizes[pieces.of(smallest.index())]) smallest = atom;
  }
  const std::size_t size = sizes[pieces.of(smallest.index())], others = profile.graph.node_count() - size;
  if (others == 0) return;
  throw ConfigError("the graph is disconnected: " + name_of_atom(profile, smallest) +
                        (size > 1 ? " and " + std::to_string(size - 1) + " more with it share" : " shares") +
                        " no value, input or result with the other " + std::to_string(others) +
                        " atoms; capture the model again",
                    path);
}

void require_costs(const ModelProfile& profile, const std::string& path) {
  const auto negative = [](const Affine& cost) { return cost.per_sample <= 0 && cost.fixed < 0; };
  const auto check = [&](const Affine& cost, NodeId atom, const char* what) {
    if (negative(cost)) {
      throw ConfigError(name_of_atom(profile, atom) + ": its " + what + ", " + std::to_string(cost.fixed) +
                            ", is negative; profile the model again",
                        path);
    }
  };
  for (const NodeId atom : profile.graph.nodes()) {
    const OpProfile& op = profile.graph[atom];
    for (const auto& item : op.work) {
      for (const Work* work : {&item.forward, &item.backward}) {
        check(work->flops, atom, "arithmetic");
        check(work->bytes, atom, "memory traffic");
        check(work->launches, atom, "number of operators");
      }
    }
    check(op.saved, atom, "saved bytes");
    check(op.workspace, atom, "workspace");
    check(op.forward_workspace, atom, "workspace of its forward");
    check(op.deferred_weight, atom, "bytes of deferred weight gradients");
  }
  for (const EdgeId edge : profile.graph.edges()) check(profile.graph[edge].bytes, profile.graph.source(edge), "value");
}

void require_few(const PlanRequest& request) {
  const Options& options = request.options;
  const std::int64_t most =
      options.microbatches > 0
          ? options.microbatches
          : std::max<std::int64_t>(options.min_microbatches,
                                   std::min<std::int64_t>(options.max_microbatches, request.batch));
  if (most * request.world > kMostComputes) {
    throw InvalidArgument(std::to_string(most) + " micro-batches on " + std::to_string(request.world) +
                          " ranks are more than can be simulated; lower " +
                          (options.microbatches > 0 ? "microbatches" : "max_microbatches"));
  }
}

/// A planner accepts empty micro-batches, but no user wants them.
/// @throws InvalidArgument if options ask for more micro-batches than the batch has samples
void require_samples(const PlanRequest& request) {
  const auto require = [&](const char* name, int value) {
    if (value <= request.batch) return;
    throw InvalidArgument(std::string(name) + " = " + std::to_string(value) + " is more than the " +
                          std::to_string(request.batch) +
                          " samples of the batch, so that some would be empty; lower it, or bring more samples");
  };
  require("microbatches", request.options.microbatches);
  require("min_microbatches", request.options.min_microbatches);
}

}  // namespace

ModelProfile load_profile(const std::string& path) {
  ModelProfile profile = read_profile(path);
  if (profile.graph.node_count() == 0) throw ConfigError("the profile has no atom; there is nothing to plan", path);
  for (const auto& output : profile.outputs) {
    if (!output.writer.valid()) throw ConfigError("a result of the profile is written by no atom", path);
  }
  try {
    (void)topological_order(profile.graph, [&](NodeId atom) { return name_of_atom(profile, atom); });
  } catch (const InvalidArgument& error) {
    throw ConfigError(error.what(), path);
  }
  require_one_piece(profile, path);
  require_costs(profile, path);
  return profile;
}

Cluster resized(Cluster cluster, int devices) {
  cluster.devices = devices;
  if (!cluster.levels.empty()) {
    auto& outermost = cluster.levels.back();
    const int inner = cluster.levels.size() > 1 ? cluster.levels[cluster.levels.size() - 2].span : 1;
    if (outermost.span < devices) outermost.span = (devices + inner - 1) / inner * inner;
  }
  return cluster;
}

void require_sane_sizes(const ModelProfile& profile, std::int64_t world, std::int64_t batch, std::int64_t microbatches,
                        double optimizer_state_factor) {
  const auto samples = static_cast<double>(batch) + static_cast<double>(world) * static_cast<double>(microbatches);
  const auto held = static_cast<double>(microbatches) + 2;
  double bytes = 0;
  const auto add = [&](const Affine& size) { bytes += 2 * (size.per_sample * samples + std::abs(size.fixed) * held); };
  for (const NodeId atom : profile.graph.nodes()) {
    add(profile.graph[atom].saved);
    add(profile.graph[atom].workspace);
  }
  for (const EdgeId edge : profile.graph.edges()) add(profile.graph[edge].bytes);
  for (const auto& input : profile.inputs) add(input.bytes);
  for (const auto& output : profile.outputs) add(output.bytes);
  for (const auto& region : profile.tensor_regions) add(region.forward), add(region.backward);
  for (const auto& parameter : profile.parameters)
    bytes += static_cast<double>(parameter.bytes.value()) * (4 + optimizer_state_factor);
  if (!(bytes < 0x1p60)) {
    throw InvalidArgument("values and parameters of the profile are together more than 2^60 bytes on " +
                          std::to_string(batch) + " samples; the profile is damaged, or the batch too large");
  }
}

MeasuredCosts load_costs(const std::string& path) { return path.empty() ? MeasuredCosts{} : read_costs(path).costs; }

Problem load_problem(const ProblemArguments& arguments) {
  Problem problem;
  problem.profile = load_profile(arguments.profile);
  problem.cluster = read_cluster(arguments.cluster);
  problem.measured = load_costs(arguments.costs);
  if (arguments.devices < 0 || arguments.devices > kMostRanks) {
    throw InvalidArgument("--devices " + std::to_string(arguments.devices) + " is not within 1 to " +
                          std::to_string(kMostRanks));
  }
  if (arguments.devices > 0) problem.cluster = resized(problem.cluster, static_cast<int>(arguments.devices));
  ConfigSources sources;
  sources.arguments = arguments.settings;
  if (!arguments.options_file.empty()) {
    sources.file = arguments.options_file;
    sources.text = read_text_file(arguments.options_file, Bytes(1 << 20));
  }
  const ResolvedOptions resolved = resolve_options({}, sources);
  problem.notes = resolved.notes;
  PlanRequest& request = problem.request;
  request.options = resolved.options;
  request.runtime = arguments.runtime;
  const std::int64_t world = arguments.world > 0 ? arguments.world : problem.cluster.devices;
  if (arguments.world < 0 || world > kMostRanks) {
    throw InvalidArgument("a world of " + std::to_string(arguments.world != 0 ? arguments.world : world) +
                          " ranks; plans are made for 1 to " + std::to_string(kMostRanks));
  }
  request.world = static_cast<int>(world);
  if (arguments.batch < 0 || arguments.batch > kMostSamples) {
    throw InvalidArgument("--batch " + std::to_string(arguments.batch) + " is not within 1 to " +
                          std::to_string(kMostSamples));
  }
  request.batch = arguments.batch > 0 ? arguments.batch : kSamplesOfRank * world;
  if (arguments.batch == 0) {
    problem.notes.push_back("no --batch was given: planned for " + std::to_string(kSamplesOfRank) +
                            " samples a rank, " + std::to_string(request.batch) + " together");
  }
  require_few(request);
  require_samples(request);
  require_sane_sizes(problem.profile, world, request.batch,
                     std::max({64, request.options.microbatches, request.options.max_microbatches}),
                     request.options.optimizer_state_factor);
  return problem;
}

void require_same(const Plan& plan, const ModelProfile& profile, const Cluster& cluster) {
  std::size_t planned = 0;
  for (const auto& stage : plan.stages) planned += stage.atoms.size();
  if (plan.model != profile.hash) {
    throw InvalidArgument("the plan was made for another model: it divides " + std::to_string(planned) +
                          " atoms of model " + std::to_string(plan.model) + ", the profile has " +
                          std::to_string(profile.graph.node_count()) + " and is of model " +
                          std::to_string(profile.hash));
  }
  if (plan.world > cluster.devices) {
    throw InvalidArgument("the plan was made for " + std::to_string(plan.world) + " ranks, the cluster '" +
                          cluster.name + "' has " + std::to_string(cluster.devices) + " devices");
  }
  if (plan.device != cluster.device.name) {
    throw InvalidArgument("the plan was made for devices '" + plan.device + "', those of cluster '" + cluster.name +
                          "' are '" + cluster.device.name + "'");
  }
  if (plan.batch < 1 || plan.batch > kMostSamples)
    throw InvalidArgument("the plan was made for a batch of " + std::to_string(plan.batch) + " samples");
  if (std::int64_t{plan.microbatches} * plan.world > kMostComputes) {
    throw InvalidArgument("the plan has " + std::to_string(plan.microbatches) + " micro-batches on " +
                          std::to_string(plan.world) + " ranks, more than can be simulated");
  }
  require_sane_sizes(profile, plan.world, plan.batch, plan.microbatches, plan.optimizer_state_factor);
}

}  // namespace autopar::tool
