#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/cost/contention.hpp>
#include <autopar/cost/cost_curve.hpp>
#include <autopar/cost/model_profile.hpp>

namespace autopar {

/// A range of numbers of samples.
struct SampleRange {
  std::int64_t least = 0, most = std::numeric_limits<std::int64_t>::max();

  [[nodiscard]] bool holds(const SampleRange& other) const { return least <= other.least && other.most <= most; }
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

/// An atom's times by samples.
struct AtomTimes {
  CostCurve forward, backward;
  friend bool operator==(const AtomTimes&, const AtomTimes&) = default;
};

/// The parts of an atom's time, from 0 to 1, that tensor shards do not divide: they take a product's slices at a lower
/// rate than the whole.
struct Undivided {
  double forward = 0, backward = 0;
  friend bool operator==(const Undivided&, const Undivided&) = default;
};

/// What was measured of an atom.
struct MeasuredAtom {
  CostCurve forward, backward;  ///< as part of a step of the first model that had it
  AtomTimes alone{};            ///< repeated alone; another model's ratio of the two is made with it
  SampleRange samples{};        ///< on which it was measured: small products are bound by memory, large ones by
                                ///< arithmetic
  std::optional<Undivided> undivided{};  ///< none: not measured on shards
  friend bool operator==(const MeasuredAtom&, const MeasuredAtom&) = default;
};

/// The span of the innermost level that joins some ranks. Pairs or groups of one class take equally long.
using LinkClass = int;

/// Measured messages and all-reduces.
struct MeasuredLinks {
  std::map<LinkClass, CostCurve> messages;
  std::map<std::pair<LinkClass, int>, CostCurve> all_reduces;  ///< by class and number of ranks
  /// Of all-reduces, likewise, with products and passes over memory in turn. None on CPUs.
  std::map<std::pair<LinkClass, int>, Contention> contention;
  /// See `DelaysByMessages`; likewise.
  std::map<LinkClass, double> message_delays;
  friend bool operator==(const MeasuredLinks&, const MeasuredLinks&) = default;
};

/// Measured on a device's host, in seconds by bytes, while the host's other ranks were equally busy.
struct MeasuredHost {
  CostCurve copy;                    ///< between device and host, mean of both directions; empty on CPUs
  std::map<int, CostCurve> updates;  ///< as MeasuredCosts::updates, on the host
  friend bool operator==(const MeasuredHost&, const MeasuredHost&) = default;
};

/// All measurements on one kind of device. A value: the same numbers give the same costs everywhere.
struct MeasuredCosts {
  std::map<std::uint64_t, MeasuredAtom> atoms;  ///< by OpProfile::structure
  MeasuredLinks links;
  /// An optimizer step on one tensor, in seconds by the tensor's bytes; key: optimizer state bytes / parameter bytes.
  std::map<int, CostCurve> updates;
  std::map<int, CostCurve> joint_updates;  ///< for `autopar::optim`, whose steps update all tensors at once
  MeasuredHost host;

  [[nodiscard]] bool empty() const {
    return atoms.empty() && links.messages.empty() && links.all_reduces.empty() && updates.empty() &&
           joint_updates.empty() && host == MeasuredHost{};
  }
  friend bool operator==(const MeasuredCosts&, const MeasuredCosts&) = default;
};

/// The first atom of each structure that `known` lacks, ascending: what is left to measure. Repeated layers count once.
/// @param samples  the numbers of samples that costs are needed for; a measurement whose range does not contain them
/// counts as missing
[[nodiscard]] inline std::vector<NodeId> atoms_to_measure(const Graph<OpProfile, ValueProfile>& graph,
                                                          const MeasuredCosts& known = {},
                                                          const SampleRange& samples = {1, 1}) {
  std::map<std::uint64_t, NodeId> first;
  for (const NodeId node : graph.nodes()) {
    const auto structure = graph[node].structure;
    const auto found = known.atoms.find(structure);
    if (found == known.atoms.end() || !found->second.samples.holds(samples)) first.emplace(structure, node);
  }
  std::vector<NodeId> result;
  for (const auto& [structure, node] : first) result.push_back(node);
  std::sort(result.begin(), result.end());
  return result;
}

/// The class of a pair of ranks.
/// @throws InvalidArgument if no level joins the ranks
[[nodiscard]] inline LinkClass link_class(const Cluster& cluster, Rank a, Rank b) {
  for (const auto& level : cluster.levels) {
    if (a.value() / level.span == b.value() / level.span) return level.span;
  }
  static_cast<void>(cluster.between(a, b));  // throws an error that names the ranks and what to do
  return cluster.devices;
}

}  // namespace autopar
