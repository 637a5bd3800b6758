#include "torch/cost/measured/profiler.hpp"

#include <algorithm>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/version.h>

#include "capture/replay/plain_message.hpp"
#include "torch/cost/measured/atom_bench.hpp"
#include "torch/cost/measured/halved_program.hpp"
#include "torch/cost/measured/stopwatch.hpp"
#include "torch/cost/measured/stretch.hpp"
#include "torch/ranks/collective_try.hpp"

namespace autopar::cost {

namespace {

using detail::AtomBench;

void check_probes(const MeasureOptions& options) {
  expect(!options.samples.empty() && options.repetitions >= 1,
         "measuring takes at least one micro-batch and repetition");
  expect(options.samples.front() >= 1, "a micro-batch that is measured must have at least one sample");
  expect(std::ranges::is_sorted(options.samples, std::less_equal()), "micro-batches to measure must ascend");
}

SampleRange range_of(const MeasureOptions& options) { return {options.samples.front(), options.samples.back()}; }

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
  constexpr double kSpread = 0.03, kOfClock = 1e-7;  // seconds: views take no more
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  return *most - *least <= std::max(kSpread * *most, kOfClock);
}

/// Seconds. Longer runs take the same time each time, unless other programs take a CPU's.
double long_run(c10::Device device) { return device.is_cpu() ? 5e-2 : 5e-3; }

/// An atom that runs alone represents a part of a step, in which the host is ahead of the device.
constexpr bool kHostIsAhead = true;

/// @param host_is_ahead  whether only the device's time counts
/// @param elsewhere  bytes that the rest of the model moves meanwhile, by samples
AtomTimes measure_bench(AtomBench bench, bool host_is_ahead, double start, const Affine& elsewhere,
                        const MeasureOptions& options) {
  constexpr int kFewest = 3;
  const double enough = long_run(bench.device());
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
      if (i + 1 >= kFewest && (is_known || forwards.back() + backwards.back() > enough)) break;
    }
    forward.push_back({static_cast<double>(samples), detail::median(forwards)});
    backward.push_back({static_cast<double>(samples), detail::median(backwards)});
  }
  return {CostCurve(std::move(forward)), CostCurve(std::move(backward))};
}

/// As before a first call: layers have no scales, and run in 16 bits.
std::unique_ptr<fp8::Layers> layers_without_scales(const GraphProfile& profile, c10::Device device) {
  auto layers = std::make_unique<fp8::Layers>();
  if (!profile.in_8_bits.empty()) layers->start(profile.in_8_bits, device);
  return layers;
}

/// As after a first call, for inputs and gradients that AtomBench makes.
std::unique_ptr<fp8::Layers> layers_with_scales(const GraphProfile& profile, c10::Device device) {
  constexpr float kMost = 8;  // of many normal numbers
  const std::vector<float> calls(fp8::Layers::kHistory, kMost);
  auto layers = layers_without_scales(profile, device);
  std::map<std::string, fp8::History> histories;
  for (const auto& weight : profile.in_8_bits) histories[weight] = {calls, calls, calls};
  layers->set_histories(histories);
  return layers;
}

/// A first call, in 16 bits: from now on layers run in 8 bits, with scales for what they have seen.
void run_first_call(AtomBench& bench, fp8::Layers& layers, const std::vector<std::int64_t>& samples) {
  if (layers.empty()) return;
  for (const auto size : samples) bench.run_untimed(size);
  layers.agree(layers.take_seen(0, 1));
  layers.begin_call();
}

/// What a stretch of the model may take. Every device has this; large ones give more, so that it has many layers: five
/// layers of 24 took 6 % less time each than 18 of them, which take what they take in a step (benchmarks/NOTES.md).
Bytes bytes_of_stretch(c10::Device device) {
  constexpr Bytes kLeast(1 << 29);
  constexpr std::int64_t kOfDevice = 10, kOfFree = 4;
  if (device.is_cpu()) return kLeast;
  const auto [free, all] = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
  return std::max(
      kLeast, Bytes(std::min(static_cast<std::int64_t>(all) / kOfDevice, static_cast<std::int64_t>(free) / kOfFree)));
}

/// Of several atoms, for one number of samples.
struct AtomSeconds {
  void add(const AtomTimes& times, double samples) {
    forward += times.forward.at(samples);
    backward += times.backward.at(samples);
  }
  [[nodiscard]] Seconds both() const { return forward + backward; }
  Seconds forward, backward;
};

/// Ratios of atoms' time in sequence to their time when each is repeated alone, by number of samples. In sequence a
/// CPU's data are further away, and a device's nearer, as the operator before has just made them. And only in sequence
/// a device runs at the clock that the model's power allows.
struct Ratios {
  explicit Ratios(std::size_t sizes) : forward(sizes, 1), backward(sizes, 1) {}
  void set(std::size_t i, const AtomSeconds& in_sequence, const AtomSeconds& alone) {
    if (alone.forward > Seconds{}) forward[i] = in_sequence.forward / alone.forward;
    if (alone.backward > Seconds{}) backward[i] = in_sequence.backward / alone.backward;
  }
  std::vector<double> forward, backward;
};

/// `alone` as part of a step.
MeasuredAtom in_step(const AtomTimes& alone, const Ratios& ratios, const MeasureOptions& options) {
  const auto times = [&](const CostCurve& curve, const std::vector<double>& factors) {
    std::vector<MeasuredPoint> points;
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const auto size = static_cast<double>(options.samples[i]);
      points.push_back({size, curve.at(size).value() * factors[i]});
    }
    return CostCurve(std::move(points));
  };
  return {times(alone.forward, ratios.forward), times(alone.backward, ratios.backward), alone, range_of(options)};
}

/// A model whose atoms are measured, and how.
struct Bench {
  const OpGraph& graph;
  const algebra::BatchSemantics& plan;
  const GraphProfile& profile;
  c10::Device device;
  fp8::Layers& fp8;
  const MeasureOptions& options;
  Affine moved;  ///< bytes that the whole model moves, by samples

  /// @param atoms  whose operators these are
  [[nodiscard]] AtomTimes times(const std::vector<NodeId>& atoms, const std::vector<OpId>& ops,
                                detail::StepStopwatch& stopwatch, bool host_is_ahead, double start) const {
    auto elsewhere = moved;
    for (const NodeId node : atoms) elsewhere -= moved_bytes(profile.model, node);
    return measure_bench(atom_bench(ops, stopwatch), host_is_ahead, start, elsewhere, options);
  }
  [[nodiscard]] AtomBench atom_bench(const std::vector<OpId>& ops, detail::StepStopwatch& stopwatch) const {
    return {graph, plan, ops, stopwatch, fp8};
  }
};

/// Runs a stretch of the model as a stage does. All ratios are 1 if no two neighbours can.
/// @param alone  of all atoms that can run alone, by structure
Ratios measure_together(const Bench& bench, const std::map<std::uint64_t, AtomTimes>& alone) {
  const auto& samples = bench.options.samples;
  const auto times_of = [&](NodeId node) { return alone.find(bench.profile.model.graph[node].structure); };
  const auto time = [&](NodeId node) -> std::optional<Seconds> {
    const auto found = times_of(node);
    if (found == alone.end()) return std::nullopt;
    const auto size = static_cast<double>(samples.back());
    return found->second.forward.at(size) + found->second.backward.at(size);
  };
  Ratios ratios(samples.size());
  const auto stretch =
      detail::typical_stretch(bench.profile, static_cast<double>(samples.back()), bytes_of_stretch(bench.device), time);
  if (stretch.atoms.size() < 2) return ratios;
  // After a loss gradients are so small that other scales would make them zeros, whose products take less power.
  const auto fp8 = layers_without_scales(bench.profile, bench.device);
  const Bench scaled{bench.graph, bench.plan, bench.profile, bench.device, *fp8, bench.options, bench.moved};
  detail::StepStopwatch stopwatch(bench.device);
  auto around = scaled.atom_bench(stretch.ops, stopwatch);
  run_first_call(around, *fp8, samples);
  stopwatch.run_around([&] { around.run_untimed(samples.back()); });
  const auto whole = scaled.times(stretch.atoms, stretch.ops, stopwatch, bench.options.recorded, 0);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto size = static_cast<double>(samples[i]);
    AtomSeconds together, apart;
    together.add(whole, size);
    for (const NodeId node : stretch.atoms) apart.add(times_of(node)->second, size);
    ratios.set(i, together, apart);
  }
  return ratios;
}

/// Of the model's atoms that were known before, if these are most of it: the others are in a step as they are.
std::optional<Ratios> known_ratios(const Bench& bench, const std::map<std::uint64_t, AtomTimes>& fresh,
                                   const MeasuredCosts& known) {
  constexpr double kMostFresh = 0.5;  // of the time of those that were known
  const auto& samples = bench.options.samples;
  Ratios ratios(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto size = static_cast<double>(samples[i]);
    AtomSeconds in_step, alone, of_fresh;
    for (const NodeId node : bench.profile.model.graph.nodes()) {
      const auto structure = bench.profile.model.graph[node].structure;
      if (const auto found = fresh.find(structure); found != fresh.end()) {
        of_fresh.add(found->second, size);
      } else if (const auto before = known.atoms.find(structure); before != known.atoms.end()) {
        in_step.add({before->second.forward, before->second.backward}, size);
        alone.add(before->second.alone, size);
      }
    }
    if (of_fresh.both() > kMostFresh * alone.both()) return std::nullopt;
    ratios.set(i, in_step, alone);
  }
  return ratios;
}

/// The mean of all ranks' ratios. Collective.
Ratios agreed_ratios(World& world, const Bench& bench, const std::map<std::uint64_t, AtomTimes>& alone) {
  Ratios ratios(bench.options.samples.size());
  try {
    ratios = measure_together(bench, alone);
  } catch (const std::exception& error) {
    const auto log = world.logger(LogModule::kProfiler);
    const auto message = "operators cannot be run one after the other alone: " + replay::plain_message(error);
    if (world.rank() == 0)
      log.warn(message);
    else
      log.debug(message);  // every rank runs the same atoms
  }
  for (auto* of : {&ratios.forward, &ratios.backward}) {
    world.all_reduce_sum(*of, "averaging measured costs");
    for (double& ratio : *of) ratio /= world.size();
  }
  return ratios;
}

/// Puts operators of the library last: their kernels may still be compiled while the others are measured.
void put_off_own_operators(const Bench& bench, std::vector<NodeId>& atoms) {
  std::ranges::stable_partition(atoms, [&](NodeId node) {
    return std::ranges::none_of(bench.profile.atoms.atoms[node.index()],
                                [&](OpId op) { return bench.graph.name(op).starts_with("autopar::"); });
  });
}

/// Measures this rank's share of the atoms alone.
MeasuredCosts measure_share(const World& world, const Bench& bench, const std::vector<NodeId>& atoms) {
  MeasuredCosts mine;
  detail::StepStopwatch stopwatch(bench.device);
  const double start = detail::start_of_backward(stopwatch);
  const auto ranks = static_cast<std::size_t>(world.size());
  for (auto i = static_cast<std::size_t>(world.rank()); i < atoms.size(); i += ranks) {
    const auto& atom = bench.profile.model.graph[atoms[i]];
    try {
      const auto& ops = bench.profile.atoms.atoms[atoms[i].index()];
      const auto times = bench.times({atoms[i]}, ops, stopwatch, kHostIsAhead, start);
      mine.atoms[atom.structure].alone = times;
    } catch (const std::exception& error) {
      world.logger(LogModule::kProfiler)
          .warn(atom.name + (atom.path.empty() ? "" : " (near " + atom.path + ")") +
                " cannot be run alone, so its cost is estimated: " + replay::plain_message(error));
    }
  }
  return mine;
}

/// What all ranks measured, by structure.
std::map<std::uint64_t, AtomTimes> gathered(World& world, const MeasuredCosts& mine) {
  const auto text = to_json(mine, {});
  std::map<std::uint64_t, AtomTimes> all;
  for (const auto& blob : world.all_gather(ranks::blob_of(text), "gathering measured costs")) {
    for (const auto& [structure, atom] : parse_costs(ranks::text_of(blob), "the costs of a rank", {}).atoms)
      all[structure] = atom.alone;
  }
  return all;
}

/// Measures what is not known, each atom alone, and how long they take in a step. Collective.
void measure_whole(World& world, const Bench& bench, MeasuredCosts& known) {
  const auto& model = bench.profile.model.graph;
  auto todo = atoms_to_measure(model, known, range_of(bench.options));
  if (todo.empty()) return;
  put_off_own_operators(bench, todo);
  const auto mine = measure_share(world, bench, todo);
  const auto fresh = gathered(world, mine);
  auto alone = fresh;
  for (const auto& [structure, atom] : known.atoms) alone.emplace(structure, atom.alone);
  const auto before = known_ratios(bench, fresh, known);
  const auto ratios = before ? *before : agreed_ratios(world, bench, alone);
  for (const auto& [structure, times] : fresh) known.atoms[structure] = in_step(times, ratios, bench.options);
  world.logger(LogModule::kProfiler)
      .info("measured " + std::to_string(mine.atoms.size()) + " of " + std::to_string(todo.size()) +
            " distinct atoms that were not known, of " + std::to_string(model.node_count()) +
            " atoms; with the largest slice they take together " + std::to_string(ratios.forward.back()) +
            " (forward) and " + std::to_string(ratios.backward.back()) + " (backward) x as long as alone");
}

/// The first atom of each structure with a product that tensor shards may divide, if it is not known at what cost.
std::vector<NodeId> products_of_shards(const ModelProfile& model, const MeasuredCosts& known) {
  std::map<std::uint64_t, NodeId> first;
  for (const TensorRegion& region : model.tensor_regions) {
    for (const NodeId node : region.atoms) {
      const auto& atom = model.graph[node];
      const bool is_product =
          std::ranges::any_of(atom.work, [](const WorkItem& item) { return item.op_class == OpClass::kMatmul; });
      const auto found = known.atoms.find(atom.structure);
      if (is_product && found != known.atoms.end() && !found->second.undivided) first.emplace(atom.structure, node);
    }
  }
  std::vector<NodeId> nodes;
  for (const auto& [structure, node] : first) nodes.push_back(node);
  return nodes;
}

/// Measures what tensor shards do not divide: one of two takes half the time and half of this. A shard of what cannot
/// be run alone takes its share. Collective.
void measure_undivided(World& world, const Bench& bench, MeasuredCosts& known) {
  const auto& model = bench.profile.model;
  const auto todo = products_of_shards(model, known);
  if (todo.empty()) return;
  const auto halved = detail::halved_program(bench.graph, bench.plan, bench.profile);
  auto options = bench.options;
  options.samples = {options.samples.back()};
  const Bench whole{bench.graph, bench.plan, bench.profile, bench.device, bench.fp8, options, bench.moved};
  const Bench half{halved.graph, halved.plan, bench.profile, bench.device, bench.fp8, options, bench.moved};
  detail::StepStopwatch stopwatch(bench.device);
  const double start = detail::start_of_backward(stopwatch);
  const auto size = static_cast<double>(options.samples.back());
  const auto part = [&](const CostCurve& of_half, const CostCurve& of_whole) {
    const auto all = of_whole.at(size);
    return all > Seconds{} ? std::clamp(2 * (of_half.at(size) / all) - 1, 0.0, 1.0) : 0.0;
  };
  std::vector<double> parts(2 * todo.size());  // zeros where another rank measures
  const auto ranks = static_cast<std::size_t>(world.size());
  for (auto i = static_cast<std::size_t>(world.rank()); i < todo.size(); i += ranks) {
    const auto& ops = halved.atoms[todo[i].index()];
    if (ops.empty()) continue;
    try {
      const auto all =
          whole.times({todo[i]}, bench.profile.atoms.atoms[todo[i].index()], stopwatch, kHostIsAhead, start);
      const auto one = half.times({todo[i]}, ops, stopwatch, kHostIsAhead, start);
      parts[2 * i] = part(one.forward, all.forward);
      parts[2 * i + 1] = part(one.backward, all.backward);
    } catch (const std::exception& error) {
      world.logger(LogModule::kProfiler)
          .debug("a tensor shard of " + model.graph[todo[i]].name +
                 " cannot be run alone: " + replay::plain_message(error));
    }
  }
  world.all_reduce_sum(parts, "sharing measured costs");
  for (std::size_t i = 0; i < todo.size(); ++i)
    known.atoms[model.graph[todo[i]].structure].undivided = Undivided{parts[2 * i], parts[2 * i + 1]};
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

AtomTimes measure_atom(const OpGraph& graph, const algebra::BatchSemantics& plan, const GraphProfile& profile,
                       NodeId atom, c10::Device device, const MeasureOptions& options) {
  check_probes(options);
  detail::StepStopwatch stopwatch(device);
  const auto fp8 = layers_with_scales(profile, device);
  const Bench bench{graph, plan, profile, device, *fp8, options, {}};
  return bench.times({}, profile.atoms.atoms[atom.index()], stopwatch, kHostIsAhead,
                     detail::start_of_backward(stopwatch));
}

MeasuredCosts measure_atoms(World& world, const OpGraph& graph, const algebra::BatchSemantics& plan,
                            const GraphProfile& profile, c10::Device device, const MeasureOptions& options,
                            MeasuredCosts known) {
  check_probes(options);
  const bool knows_shards = world.size() == 1 || products_of_shards(profile.model, known).empty();
  if (knows_shards && atoms_to_measure(profile.model.graph, known, range_of(options)).empty()) return known;
  Affine moved;  // by all ranks of a host, which share the largest cache
  for (const NodeId node : profile.model.graph.nodes()) moved += moved_bytes(profile.model, node) * world.local_size();
  const auto fp8 = layers_with_scales(profile, device);
  const Bench bench{graph, plan, profile, device, *fp8, options, moved};
  measure_whole(world, bench, known);
  if (world.size() > 1) measure_undivided(world, bench, known);
  return known;
}

CostOrigin cost_origin(const World& world, const Cluster& cluster, c10::Device device) {
  CostOrigin origin;
  origin.device = cluster.device.name;
  if (device.is_cpu())
    origin.device += ": " + processor_name() + ", " + std::to_string(at::get_num_threads()) + " threads a rank";
  if (world.size() == 1) origin.device += ", one rank";  // it has the host's memory to itself
  // CPU ranks share a host's memory. Links between hosts are no links within a host, even for equally large worlds.
  if (device.is_cpu() || world.local_size() < world.size())
    origin.device += ", " + std::to_string(world.local_size()) + " ranks a host";
  origin.libtorch = TORCH_VERSION;
  return origin;
}

}  // namespace autopar::cost
