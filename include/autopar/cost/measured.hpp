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
#include <autopar/cost/fit.hpp>
#include <autopar/cost/model_profile.hpp>

namespace autopar {

/// Numbers of samples from one to another.
struct SampleRange {
  std::int64_t least = 0, most = std::numeric_limits<std::int64_t>::max();

  [[nodiscard]] bool holds(const SampleRange& other) const { return least <= other.least && other.most <= most; }
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

/// What one atom cost when it was run alone, by samples. Times in seconds, memory in bytes.
struct MeasuredAtom {
  FittedLine forward;
  FittedLine backward;
  std::optional<FittedLine> saved;      ///< if measured
  std::optional<FittedLine> workspace;  ///< if measured
  SampleRange samples{};                ///< that it was run on: a product of few is bound by memory, one of many is not
  friend bool operator==(const MeasuredAtom&, const MeasuredAtom&) = default;
};

/// Ranks that the level of this span joins, and no level further in: pairs or groups of one class take equally long.
using LinkClass = int;

/// What messages and sums took, in seconds by bytes: the intercept is the latency, 1 / slope the bandwidth.
struct MeasuredLinks {
  std::map<LinkClass, FittedLine> messages;
  std::map<std::pair<LinkClass, int>, FittedLine> all_reduces;  ///< by class and number of ranks
  friend bool operator==(const MeasuredLinks&, const MeasuredLinks&) = default;
};

/// What a device's host took, in seconds by bytes, while the ranks beside it were as busy.
struct MeasuredHost {
  std::optional<FittedLine> copy;     ///< between device and host, the mean of both directions; none on CPUs
  std::map<int, FittedLine> updates;  ///< as MeasuredCosts::updates, on the host
  friend bool operator==(const MeasuredHost&, const MeasuredHost&) = default;
};

/// Everything that was measured on one kind of device. A value: the same numbers give the same costs everywhere.
struct MeasuredCosts {
  std::map<std::uint64_t, MeasuredAtom> atoms;  ///< by OpProfile::structure
  MeasuredLinks links;
  /// An optimizer's step on one tensor, in seconds by its bytes; by optimizer state bytes / parameter bytes.
  std::map<int, FittedLine> updates;
  std::map<int, FittedLine> joint_updates;  ///< the same of `autopar::optim`, which steps over all tensors at once
  MeasuredHost host;

  [[nodiscard]] bool empty() const {
    return atoms.empty() && links.messages.empty() && links.all_reduces.empty() && updates.empty() &&
           joint_updates.empty() && host == MeasuredHost{};
  }
  friend bool operator==(const MeasuredCosts&, const MeasuredCosts&) = default;
};

/// The first atom of each structure that `known` lacks, ascending: what is left to measure. Repeated layers count once.
/// @param samples  that costs are asked for: what is known of others only is lacking
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

/// The class of a pair. @throws InvalidArgument if no level joins the ranks
[[nodiscard]] inline LinkClass link_class(const Cluster& cluster, Rank a, Rank b) {
  for (const auto& level : cluster.levels) {
    if (a.value() / level.span == b.value() / level.span) return level.span;
  }
  static_cast<void>(cluster.between(a, b));  // says which ranks, and what to do
  return cluster.devices;
}

}  // namespace autopar
