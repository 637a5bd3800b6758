#pragma once

#include <vector>

#include <autopar/core/ids.hpp>

#include <autopar/capture/op_graph.hpp>

namespace autopar::interpret {

/// Atoms of a captured program that keep only the values that enter them, and recompute their forward before their
/// backward.
struct RecomputedAtoms {
  std::vector<NodeId> atom_of;  ///< by OpId, see AtomPartition
  /// By atom: atoms of one segment are recomputed together; -1 = runs once. Empty = all run once
  std::vector<int> segment_of;
};

/// Operators of a stage that run consecutively.
struct StagePart {
  std::vector<OpId> ops;    ///< ascending
  bool recomputed = false;  ///< the operators are recomputed before their backward
};

/// Divides the operators of a stage into parts, in an executable order. A segment is one part, unless other operators
/// of the stage depend on some of it and the rest depends on them. Then the segment is split there. Operators that run
/// once form as few parts as fit between the segments. Atoms stay whole, so memory is written and read as in program
/// order.
/// @param ops  ascending, whole atoms
/// @cost O((ops + values) log ops); O(ops) more where segments are split, see acyclic_splitting
[[nodiscard]] std::vector<StagePart> parts_of_stage(const OpGraph& graph, const std::vector<OpId>& ops,
                                                    const RecomputedAtoms& recomputed);

}  // namespace autopar::interpret
