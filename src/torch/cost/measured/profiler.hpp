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

/// On what atoms are run, and how often.
struct MeasureOptions {
  std::vector<std::int64_t> samples{1, 2, 4};  ///< of the micro-batches that are tried, each at least 1
  int repetitions = 7;                         ///< at most, of which the median counts; three where they agree
  bool adds_gradients = true;                  ///< to what parameters have, as later micro-batches and replicas do
  bool recorded = false;                       ///< steps are recorded and replayed: no device waits for the host
};

/// Three sizes that span the micro-batches of a step of `batch` samples on `world` ranks: from an eighth of a rank's
/// part to all of it, at least 1, 2 and 4.
[[nodiscard]] std::vector<std::int64_t> probe_samples(std::int64_t batch, int world);

/// Runs one atom alone, forward and backward, on inputs of its own: random numbers, of either sign what is multiplied
/// and gradients, in [0, 1) others; zeros for integers. No parameter, buffer or generator of the model is touched.
/// Memory is not measured.
///
/// What starting a backward costs is taken off, as a stage starts one for all its atoms. On devices that work
/// asynchronously several runs follow one another without waiting, as in a step.
/// @throws what an operator throws
[[nodiscard]] MeasuredAtom measure_atom(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                        const AtomPartition& atoms, NodeId atom, c10::Device device,
                                        const MeasureOptions& options);

/// Measures one atom of each structure that `known` lacks for such numbers of samples, shared out among the ranks, and
/// gives every rank all of them, known ones included. On a CPU as much memory is touched before each run as the host's
/// ranks move between two compute actions of an atom, so that caches hold what they do in a step. An atom that cannot
/// be run alone is left out, with a warning: it costs what the roofline says. Then every rank runs the beginning of the
/// model, up to 512 MiB, as a stage does; by how much that takes longer than the sum of its atoms, those that were
/// measured now are made longer. Collective. @cost (distinct atoms / ranks + 1 beginning of the model) x probes x
/// repetitions runs
[[nodiscard]] MeasuredCosts measure_atoms(World& world, const OpGraph& graph, const algebra::BatchSemantics& plan,
                                          const GraphProfile& profile, c10::Device device,
                                          const MeasureOptions& options, MeasuredCosts known = {});

/// Measures messages and sums over each class of links of `cluster` that the world has: between rank 0 and the first
/// rank beyond the level further in, and over 2, 4, 8, … and all ranks of the level. The levels are those that rank 0
/// gives. Collective.
[[nodiscard]] MeasuredLinks measure_links(World& world, AnyTransport& wire, const Cluster& cluster, c10::Device device);

/// Measures the steps of optimizers without state (SGD), with one (SGD with momentum) and two (Adam) numbers a
/// parameter, on tensors of their own, on all ranks at once, as in training. @return rank 0's. Collective.
/// @param at_once  those of `autopar::optim` instead of torch::optim's, which step tensor by tensor
[[nodiscard]] std::map<int, FittedLine> measure_updates(World& world, c10::Device device, bool at_once = false);

/// Measures copies between device and host and the steps of optimizers on the host, on all ranks at once, as offloaded
/// optimizers run. Nothing where the devices are CPUs. @return rank 0's. Collective.
[[nodiscard]] MeasuredHost measure_host(World& world, c10::Device device);

/// What measurements on this rank's device hold for.
[[nodiscard]] CostOrigin cost_origin(const World& world, const Cluster& cluster, c10::Device device);

}  // namespace autopar::cost
