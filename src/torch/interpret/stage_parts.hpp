#pragma once

#include <vector>

#include <autopar/core/ids.hpp>

#include <autopar/capture/op_graph.hpp>

namespace autopar {

/// Atoms of a captured program that keep what enters them alone, and recompute their forward before their backward.
struct RecomputedAtoms {
  std::vector<NodeId> atom_of;  ///< by OpId, see AtomPartition
  /// By atom: those of one segment are recomputed together; -1 = runs once. Empty = all run once
  std::vector<int> segment_of;
};

/// Operators of a stage that run at a stretch.
struct StagePart {
  std::vector<OpId> ops;    ///< ascending
  bool recomputed = false;  ///< they are recomputed before their backward
};

/// The operators of a stage in parts, in an order in which they can run. A segment is one part, unless others of the
/// stage need some of it and are needed by the rest: then it is taken apart there. What runs once is in as few parts as
/// lie between the segments. Atoms stay whole, so memory is written and read as in program order.
/// @param ops  ascending, whole atoms
/// @cost O((ops + values) log ops); O(ops) more where segments are taken apart, see acyclic_splitting
[[nodiscard]] std::vector<StagePart> parts_of_stage(const OpGraph& graph, const std::vector<OpId>& ops,
                                                    const RecomputedAtoms& recomputed);

}  // namespace autopar
