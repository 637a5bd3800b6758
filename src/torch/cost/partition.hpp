#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/ids.hpp>

#include "capture/algebra/batch_algebra.hpp"

namespace autopar::cost {

/// The ops of the pipeline in atoms: sets of ops that may not be separated. Every set of atoms that is convex in the
/// quotient graph is a legal stage.
struct AtomPartition {
  std::vector<std::vector<OpId>> atoms;  ///< in a topological order of the quotient; ops ascending
  std::vector<NodeId> atom_of;           ///< by OpId; none for ops outside the pipeline (prologue, epilogue, no effect)
};

/// Ops stay together
///  - with all ops that touch a memory up to its last in-place write (a stage cannot write what an earlier one made),
///  - with all ops that touch a buffer that the forward writes,
///  - with the readers of a value that may not leave its slice (sample indices, statistics),
///  - if they compute from parameters only, with the op that applies the parameter to samples, so that the parameter
///  has
///    one owner; if from constants only, with their first reader; views and casts of a parameter with their own reader,
///  - with the others of their tie,
///  - with what closes a circle between such groups.
/// @param ties  groups of ops of the pipeline (see ties_to_other_mode)
/// @cost O((ops + values) log ops)
[[nodiscard]] AtomPartition partition_into_atoms(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                                 const std::vector<std::vector<OpId>>& ties = {});

/// The partition of a program that has more operators, each in the atom of the one that it was made for.
/// @param made_for  by OpId of that program, the operator of the program before
[[nodiscard]] AtomPartition with_operators(const AtomPartition& atoms, const std::vector<OpId>& made_for);

}  // namespace autopar::cost
