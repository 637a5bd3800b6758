#include <autopar/torch/profiler.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "torch/profiler/atom_bench.hpp"
#include "torch/profiler/stopwatch.hpp"

namespace autopar {

namespace {

using detail::AtomBench;

/// A measured atom on its way between ranks. Plain bytes: equal programs, equal layout.
struct AtomRow {
  std::uint64_t structure = 0;
  FittedLine forward, backward;
};
static_assert(std::is_trivially_copyable_v<AtomRow>);

void check_probes(const MeasureOptions& options) {
  expect(!options.samples.empty() && options.repetitions >= 1, "measuring takes at least one micro-batch and repetition");
  for (const auto samples : options.samples) {
    expect(samples >= 1, "a micro-batch that is measured must have at least one sample");
  }
}

MeasuredAtom measure_bench(AtomBench bench, double start, const MeasureOptions& options) {
  constexpr double kLong = 0.05;  // seconds: such a run is the same each time
  constexpr int kFewest = 3;
  std::vector<MeasuredPoint> forward, backward;
  for (const auto samples : options.samples) {
    static_cast<void>(bench.run(samples));  // kernels are loaded, memory is there
    std::vector<double> forwards, backwards;
    for (int i = 0; i < options.repetitions; ++i) {
      const auto times = bench.run(samples);
      forwards.push_back(times.forward);
      backwards.push_back(times.has_backward ? std::max(0.0, times.backward - start) : 0);
      if (i + 1 >= kFewest && times.forward + times.backward > kLong) break;
    }
    forward.push_back({static_cast<double>(samples), detail::median(forwards)});
    backward.push_back({static_cast<double>(samples), detail::median(backwards)});
  }
  return {fit_line(forward), fit_line(backward), {}, {}};
}

std::string processor_name() {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.find(':') + 2, line.size()));
  }
  return "unknown processor";
}

}  // namespace

std::vector<std::int64_t> probe_samples(std::int64_t batch, int world) {
  const auto most = std::max<std::int64_t>(4, batch / std::max(1, world));
  return {std::max<std::int64_t>(1, most / 8), most / 2, most};
}

MeasuredAtom measure_atom(const OpGraph& graph, const BatchPlan& plan, const AtomPartition& atoms, NodeId atom,
                          c10::Device device, const MeasureOptions& options) {
  check_probes(options);
  return measure_bench(AtomBench(graph, plan, atoms.atoms[atom.index()], device), detail::start_of_backward(device),
                       options);
}

MeasuredCosts measure_atoms(World& world, const OpGraph& graph, const BatchPlan& plan, const GraphProfile& profile,
                            c10::Device device, const MeasureOptions& options, MeasuredCosts known) {
  check_probes(options);
  const auto& model = profile.model.graph;
  const auto todo = atoms_to_measure(model, known);
  const auto log = world.logger(LogModule::kProfiler);
  std::vector<AtomRow> rows;
  const double start = todo.empty() ? 0 : detail::start_of_backward(device);
  for (std::size_t i = 0; i < todo.size(); ++i) {
    if (i % static_cast<std::size_t>(world.size()) != static_cast<std::size_t>(world.rank())) continue;
    const auto& atom = model[todo[i]];
    try {
      const auto measured = measure_bench(
          AtomBench(graph, plan, profile.atoms.atoms[todo[i].index()], device), start, options);
      rows.push_back({atom.structure, measured.forward, measured.backward});
    } catch (const std::exception& error) {
      log.warn(atom.name + (atom.path.empty() ? "" : " (near " + atom.path + ")") +
               " cannot be run alone, so its cost is estimated: " + error.what());
    }
  }
  const auto mine = std::as_bytes(std::span<const AtomRow>(rows));
  for (const auto& blob : world.all_gather(mine, "gathering measured costs")) {
    std::vector<AtomRow> gathered(blob.size() / sizeof(AtomRow));
    if (!gathered.empty()) std::memcpy(gathered.data(), blob.data(), gathered.size() * sizeof(AtomRow));
    for (const auto& row : gathered) known.atoms[row.structure] = {row.forward, row.backward, {}, {}};
  }
  log.info("measured " + std::to_string(rows.size()) + " of " + std::to_string(todo.size()) +
           " distinct atoms that were not known, of " + std::to_string(model.node_count()) + " atoms");
  return known;
}

CostOrigin cost_origin(const World& world, const Cluster& cluster, c10::Device device) {
  CostOrigin origin;
  origin.device = cluster.device.name;
  if (device.is_cpu()) {
    origin.device += ": " + processor_name() + ", " + std::to_string(at::get_num_threads()) + " threads a rank, " +
                     std::to_string(world.local_size()) + " ranks a host";
  }
  origin.libtorch = TORCH_VERSION;
  return origin;
}

}  // namespace autopar
