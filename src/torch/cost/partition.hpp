#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/ids.hpp>

#include "capture/algebra/batch_algebra.hpp"

namespace autopar::cost {

/// The ops of the pipeline partitioned into atoms: sets of ops that must not be separated. Every set of atoms that is
/// convex in the quotient graph is a legal stage.
struct AtomPartition {
  std::vector<std::vector<OpId>> atoms;  ///< in a topological order of the quotient; ops ascending
  std::vector<NodeId> atom_of;           ///< by OpId; none for ops outside the pipeline (prologue, epilogue, no effect)
};

/// Partitions ops into atoms. An op stays together with
/// - all ops that use a memory up to its last in-place write (a stage cannot write what an earlier one made),
/// - all ops that use a buffer that the forward writes,
/// - the readers of a value that must not leave its slice (sample indices, statistics),
/// - if it depends on parameters only, the op that applies the parameter to samples, so that the parameter has one
///   owner,
/// - if it depends on constants only, its first reader; a view or cast of a parameter, its reader,
/// - the other ops of its tie,
/// - ops that close a cycle between such groups.
/// @param ties  groups of ops of the pipeline (see ties_to_other_mode)
/// @cost O((ops + values) log ops)
[[nodiscard]] AtomPartition partition_into_atoms(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                                 const std::vector<std::vector<OpId>>& ties = {});

/// The partition of a program with more operators. Each belongs to the atom of the operator that it was made for.
/// @param made_for  by OpId of the new program: the operator of the old program
[[nodiscard]] AtomPartition with_operators(const AtomPartition& atoms, const std::vector<OpId>& made_for);

}  // namespace autopar::cost
