#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/cluster.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/cost/measured.hpp>
#include <autopar/io/cost_file.hpp>
#include <autopar/runtime/any_transport.hpp>
#include <autopar/runtime/world.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/cost/profile.hpp"

namespace autopar::cost {

/// How atoms are measured.
struct MeasureOptions {
  std::vector<std::int64_t> samples{1, 2, 4};  ///< micro-batch sizes to measure, ascending from at least 1
  int repetitions = 7;                         ///< at most; the median counts; three if they agree
  bool recorded = false;                       ///< steps are replayed as CUDA graphs: no device waits for the host
};

/// Three micro-batch sizes for a step of `batch` samples on `world` ranks, from an eighth of a rank's samples to all of
/// them. They are at least 1, 2 and 4.
[[nodiscard]] std::vector<std::int64_t> probe_samples(std::int64_t batch, int world);

/// Runs one atom alone, forward and backward, on random inputs. Factors of products and gradients have either sign,
/// other inputs are in [0, 1), and integers are zeros. The model's parameters, buffers and generators are not changed.
/// Memory is not measured.
///
/// The cost of starting a backward is subtracted, since a stage starts one for all its atoms. On asynchronous devices
/// several runs follow one another without waiting, as in a step.
/// @throws what an operator throws
[[nodiscard]] AtomTimes measure_atom(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                     const GraphProfile& profile, NodeId atom, c10::Device device,
                                     const MeasureOptions& options);

/// Measures one atom of each structure that `known` lacks for these numbers of samples. Ranks share the work, and every
/// rank gets all measurements, including known ones. On a CPU, caches are brought into the state of a step before each
/// run. For this, it touches as much memory as the host's ranks move between two compute actions of an atom. An atom
/// that cannot run alone is left out with a warning, and has the roofline's cost.
///
/// Then every rank runs a stretch of the model as a stage does: up to 512 MiB, on large devices a part of theirs. The
/// ratio of this time to the sum of its atoms' times alone scales the atoms that were measured now. If these take
/// little of the model's time, the ratio of the others does.
///
/// Several ranks also run products whole and on one of two tensor shards, for the largest number of samples. What the
/// half takes beyond half the time is `MeasuredAtom::undivided`. Collective.
/// @cost (distinct atoms / ranks + 1 stretch of the model) x probes x repetitions runs; with several ranks two runs x
///       repetitions more for each product, and an analysis of the program
[[nodiscard]] MeasuredCosts measure_atoms(World& world, const OpGraph& graph, const algebra::BatchSemantics& plan,
                                          const GraphProfile& profile, c10::Device device,
                                          const MeasureOptions& options, MeasuredCosts known = {});

/// Measures messages and all-reduces over each class of links of `cluster` that the world has. A message goes between
/// rank 0 and the first rank beyond the next inner level. All-reduces are over 2, 4, 8, … and all ranks of the level.
/// On devices, several follow one another, and all-reduces run beside computation to measure how much both delay each
/// other. Rank 0's levels are used. Collective.
/// @cost on a device some tenths of a second a class and number of ranks; transfers of over 30 ms end the sizes
[[nodiscard]] MeasuredLinks measure_links(World& world, AnyTransport& wire, const Cluster& cluster, c10::Device device);

/// Measures optimizer steps on all ranks concurrently, as in training. The optimizers keep no state (SGD), one number
/// for each element (SGD with momentum), or two (Adam). Collective.
/// @param at_once  measure `autopar::optim` instead of torch::optim, whose optimizers step tensor by tensor
/// @return rank 0's measurements
[[nodiscard]] std::map<int, CostCurve> measure_updates(World& world, c10::Device device, bool at_once = false);

/// Measures copies between device and host and optimizer steps on the host, on all ranks concurrently, as offloaded
/// optimizers run. Empty if the devices are CPUs. Collective.
/// @return rank 0's measurements
[[nodiscard]] MeasuredHost measure_host(World& world, c10::Device device);

/// The device and versions for which measurements on this rank are valid.
[[nodiscard]] CostOrigin cost_origin(const World& world, const Cluster& cluster, c10::Device device);

}  // namespace autopar::cost
