#include "torch/cost/measured/profiler.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <autopar/graph/algorithms/topological_order.hpp>

#include "capture/replay/plain_message.hpp"
#include "torch/cost/measured/atom_bench.hpp"
#include "torch/cost/measured/stopwatch.hpp"
#include "torch/device/device_context.hpp"

namespace autopar::cost {

namespace {

using detail::AtomBench;

/// A measured atom as sent between ranks, as plain bytes: ranks run the same program and have the same layout.
struct AtomRow {
  std::uint64_t structure = 0;
  FittedLine forward, backward;
};
static_assert(std::is_trivially_copyable_v<AtomRow>);

void check_probes(const MeasureOptions& options) {
  expect(!options.samples.empty() && options.repetitions >= 1,
         "measuring takes at least one micro-batch and repetition");
  for (const auto samples : options.samples) {
    expect(samples >= 1, "a micro-batch that is measured must have at least one sample");
  }
}

SampleRange range_of(const MeasureOptions& options) {
  const auto [least, most] = std::ranges::minmax(options.samples);
  return {least, most};
}

/// Bytes that compute actions of an atom move, by samples: its parameters, their gradients, and saved values.
Affine moved_bytes(const ModelProfile& model, NodeId node) {
  Affine moved = model.graph[node].saved;
  for (const auto parameter : model.graph[node].parameters) {
    moved.fixed += 2 * static_cast<double>(model.parameters[parameter.index()].bytes.value());
  }
  return moved;
}

/// Whether the times are so close that more runs would not change their median.
bool is_steady(const std::vector<double>& seconds) {
  constexpr double kSpread = 0.03;
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  return *most - *least <= kSpread * *most;
}

/// An atom that runs alone represents a part of a step, in which the host is ahead of the device.
constexpr bool kHostIsAhead = true;

/// @param host_is_ahead  whether only the device's time counts
/// @param elsewhere  bytes that the rest of the model moves meanwhile, by samples
MeasuredAtom measure_bench(AtomBench bench, bool host_is_ahead, double start, const Affine& elsewhere,
                           const MeasureOptions& options) {
  constexpr double kLong = 0.05;  // seconds; longer runs take the same time each time
  constexpr int kFewest = 3;
  std::vector<MeasuredPoint> forward, backward;
  for (const auto samples : options.samples) {
    const Bytes others(static_cast<std::int64_t>(std::max(0.0, elsewhere.at(static_cast<double>(samples)))));
    static_cast<void>(bench.run(samples, others, start));  // loads kernels and allocates memory
    std::vector<double> forwards, backwards;
    for (int i = 0; i < options.repetitions; ++i) {
      const auto times = bench.run(samples, others, start);
      forwards.push_back(times.forward.in_step(host_is_ahead));
      backwards.push_back(times.backward.in_step(host_is_ahead));
      const bool is_known = is_steady(forwards) && is_steady(backwards);
      if (i + 1 >= kFewest && (is_known || forwards.back() + backwards.back() > kLong)) break;
    }
    forward.push_back({static_cast<double>(samples), detail::median(forwards)});
    backward.push_back({static_cast<double>(samples), detail::median(backwards)});
  }
  return {fit_line(forward), fit_line(backward), {}, {}, range_of(options)};
}

/// As after a first call, for inputs and gradients that AtomBench makes.
std::unique_ptr<fp8::Layers> layers_with_scales(const GraphProfile& profile, c10::Device device) {
  constexpr float kMost = 8;  // of many normal numbers
  const std::vector<float> calls(fp8::Layers::kHistory, kMost);
  auto layers = std::make_unique<fp8::Layers>();
  std::map<std::string, fp8::History> histories;
  for (const auto& weight : profile.in_8_bits) histories[weight] = {calls, calls, calls};
  if (!histories.empty()) layers->start(profile.in_8_bits, device);
  layers->set_histories(histories);
  return layers;
}

/// The first atoms of the model that one rank can run together, and their operators.
struct Beginning {
  std::vector<NodeId> atoms;
  std::vector<OpId> ops;  ///< ascending
};

/// Every device has this. A large table of words may take it all, so large devices give more: repeated layers, which
/// are most of a model, should be among the first atoms.
double bytes_of_beginning(c10::Device device) {
  constexpr double kLeast = 1 << 29, kOfDevice = 1.0 / 32;
  if (device.is_cpu()) return kLeast;
  const auto memory = devices::context_of(device.type()).describe(device.index(), 1).memory;
  return std::max(kLeast, kOfDevice * static_cast<double>(memory.value()));
}

Beginning beginning_that_fits(const GraphProfile& profile, double samples, double most_bytes) {
  constexpr int kCopies = 2;  // a parameter and its gradient
  const auto& model = profile.model;
  std::vector<bool> read(model.parameters.size(), false);
  double bytes = 0;
  Beginning beginning;
  for (const NodeId node : topological_order(model.graph)) {
    const auto& atom = model.graph[node];
    bytes += atom.saved.at(samples) + atom.workspace.at(samples);
    for (const auto parameter : atom.parameters) {
      if (read[parameter.index()]) continue;
      read[parameter.index()] = true;
      bytes += static_cast<double>(kCopies * model.parameters[parameter.index()].bytes.value());
    }
    if (bytes > most_bytes) break;
    beginning.atoms.push_back(node);
    const auto& ops = profile.atoms.atoms[node.index()];
    beginning.ops.insert(beginning.ops.end(), ops.begin(), ops.end());
  }
  std::sort(beginning.ops.begin(), beginning.ops.end());
  return beginning;
}

/// Seconds of the beginning's atoms when each runs alone: those measured now, and those known before.
struct Alone {
  double fresh = 0, known = 0;
};

/// The ratio of atoms' time in sequence to their time when each is repeated alone, for one number of samples. In
/// sequence a CPU's data are further away, and a device's nearer, as the operator before has just made them. 1 if
/// nearly all atoms were known before, since the ratio then says little.
double ratio_together(double whole, const Alone& alone) {
  constexpr double kLeastPart = 0.25;  // of what was known
  const double rest = whole - alone.known;
  return rest <= 0 || alone.fresh <= kLeastPart * alone.known ? 1 : rest / alone.fresh;
}

/// Runs the beginning of the model as a stage does.
/// @return ratios of forwards, then of backwards, by number of samples
std::vector<double> measure_together(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                     const GraphProfile& profile, c10::Device device, fp8::Layers& fp8,
                                     const MeasureOptions& options, const std::map<std::uint64_t, MeasuredAtom>& fresh,
                                     const MeasuredCosts& known, Affine elsewhere) {
  const auto sizes = options.samples.size();
  std::vector<double> ratios(2 * sizes, 1);
  const auto largest = *std::max_element(options.samples.begin(), options.samples.end());
  const auto beginning = beginning_that_fits(profile, static_cast<double>(largest), bytes_of_beginning(device));
  if (beginning.atoms.size() < 2) return ratios;
  for (const NodeId node : beginning.atoms) elsewhere -= moved_bytes(profile.model, node);
  detail::StepStopwatch stopwatch(device);
  AtomBench same(graph, plan, beginning.ops, stopwatch, options.adds_gradients, fp8);
  stopwatch.run_before([&] { same.run_untimed(largest); });
  const auto whole = measure_bench(AtomBench(graph, plan, beginning.ops, stopwatch, options.adds_gradients, fp8),
                                   options.recorded, 0, elsewhere, options);
  std::vector<Alone> forward(sizes), backward(sizes);
  for (const NodeId node : beginning.atoms) {
    const auto structure = profile.model.graph[node].structure;
    const auto now = fresh.find(structure), before = known.atoms.find(structure);
    for (std::size_t i = 0; i < sizes; ++i) {
      const auto size = static_cast<double>(options.samples[i]);
      if (now != fresh.end()) {
        forward[i].fresh += now->second.forward.at(size);
        backward[i].fresh += now->second.backward.at(size);
      } else if (before != known.atoms.end()) {
        forward[i].known += before->second.forward.at(size);
        backward[i].known += before->second.backward.at(size);
      }
    }
  }
  for (std::size_t i = 0; i < sizes; ++i) {
    const auto size = static_cast<double>(options.samples[i]);
    ratios[i] = ratio_together(whole.forward.at(size), forward[i]);
    ratios[sizes + i] = ratio_together(whole.backward.at(size), backward[i]);
  }
  return ratios;
}

/// The line with `ratios` times the values at these numbers of samples.
FittedLine scaled(const FittedLine& line, const std::vector<std::int64_t>& samples, std::span<const double> ratios) {
  std::vector<MeasuredPoint> points;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto size = static_cast<double>(samples[i]);
    points.push_back({size, line.at(size) * ratios[i]});
  }
  auto result = fit_line(points);
  result.residual = std::max(result.residual, line.residual);
  return result;
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

MeasuredAtom measure_atom(const OpGraph& graph, const algebra::BatchSemantics& plan, const GraphProfile& profile,
                          NodeId atom, c10::Device device, const MeasureOptions& options) {
  check_probes(options);
  detail::StepStopwatch stopwatch(device);
  const auto& ops = profile.atoms.atoms[atom.index()];
  const auto fp8 = layers_with_scales(profile, device);
  return measure_bench(AtomBench(graph, plan, ops, stopwatch, options.adds_gradients, *fp8), kHostIsAhead,
                       detail::start_of_backward(stopwatch), {}, options);
}

MeasuredCosts measure_atoms(World& world, const OpGraph& graph, const algebra::BatchSemantics& plan,
                            const GraphProfile& profile, c10::Device device, const MeasureOptions& options,
                            MeasuredCosts known) {
  check_probes(options);
  const auto& model = profile.model.graph;
  const auto samples = range_of(options);
  const auto todo = atoms_to_measure(model, known, samples);
  const auto log = world.logger(LogModule::kProfiler);
  std::vector<AtomRow> rows;
  Affine moved;  // moved by all ranks of a host, which share the largest cache
  for (const NodeId node : model.nodes()) moved += moved_bytes(profile.model, node) * world.local_size();
  detail::StepStopwatch stopwatch(device);
  const double start = todo.empty() ? 0 : detail::start_of_backward(stopwatch);
  const auto fp8 = layers_with_scales(profile, device);
  for (std::size_t i = 0; i < todo.size(); ++i) {
    if (i % static_cast<std::size_t>(world.size()) != static_cast<std::size_t>(world.rank())) continue;
    const auto& atom = model[todo[i]];
    try {
      auto elsewhere = moved;
      elsewhere -= moved_bytes(profile.model, todo[i]);
      const auto& ops = profile.atoms.atoms[todo[i].index()];
      const auto measured = measure_bench(AtomBench(graph, plan, ops, stopwatch, options.adds_gradients, *fp8),
                                          kHostIsAhead, start, elsewhere, options);
      rows.push_back({atom.structure, measured.forward, measured.backward});
    } catch (const std::exception& error) {
      log.warn(atom.name + (atom.path.empty() ? "" : " (near " + atom.path + ")") +
               " cannot be run alone, so its cost is estimated: " + replay::plain_message(error));
    }
  }
  const auto mine = std::as_bytes(std::span<const AtomRow>(rows));
  std::map<std::uint64_t, MeasuredAtom> fresh;
  for (const auto& blob : world.all_gather(mine, "gathering measured costs")) {
    std::vector<AtomRow> gathered(blob.size() / sizeof(AtomRow));
    if (!gathered.empty()) std::memcpy(gathered.data(), blob.data(), gathered.size() * sizeof(AtomRow));
    for (const auto& row : gathered) fresh[row.structure] = {row.forward, row.backward, {}, {}};
  }
  const auto sizes = options.samples.size();
  std::vector<double> ratios(2 * sizes, 1);
  if (!fresh.empty()) {
    try {
      ratios = measure_together(graph, plan, profile, device, *fp8, options, fresh, known, moved);
    } catch (const std::exception& error) {
      const auto message = "operators cannot be run one after the other alone: " + replay::plain_message(error);
      if (world.rank() == 0)
        log.warn(message);
      else
        log.debug(message);  // every rank runs the same atoms
    }
    world.all_reduce_sum(ratios, "averaging measured costs");
    for (double& ratio : ratios) ratio /= world.size();
  }
  for (const auto& [structure, atom] : fresh) {
    known.atoms[structure] = {scaled(atom.forward, options.samples, std::span(ratios).first(sizes)),
                              scaled(atom.backward, options.samples, std::span(ratios).last(sizes)),
                              {},
                              {},
                              samples};
  }
  log.info("measured " + std::to_string(rows.size()) + " of " + std::to_string(todo.size()) +
           " distinct atoms that were not known, of " + std::to_string(model.node_count()) +
           " atoms; with the largest slice they take together " + std::to_string(ratios[sizes - 1]) +
           " (forward) and " + std::to_string(ratios.back()) + " (backward) x as long as alone");
  return known;
}

CostOrigin cost_origin(const World& world, const Cluster& cluster, c10::Device device) {
  CostOrigin origin;
  origin.device = cluster.device.name;
  if (device.is_cpu())
    origin.device += ": " + processor_name() + ", " + std::to_string(at::get_num_threads()) + " threads a rank";
  if (world.size() == 1) origin.device += ", one rank";  // gradients are assigned, not added
  // CPU ranks share a host's memory. Links between hosts are no links within a host, even for equally large worlds.
  if (device.is_cpu() || world.local_size() < world.size())
    origin.device += ", " + std::to_string(world.local_size()) + " ranks a host";
  origin.libtorch = TORCH_VERSION;
  return origin;
}

}  // namespace autopar::cost
