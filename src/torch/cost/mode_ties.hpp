#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/cost/partition.hpp"

namespace autopar::cost {

/// A model's forward in one mode, or for one argument signature.
struct ModeOfModel {
  const OpGraph& graph;
  const algebra::BatchSemantics& plan;
};

/// The operators of one mode that must share a stage, so that every partition into stages is also one of another mode.
/// Parameters and buffers are in the same stages in both. There are two kinds of ties:
/// - Operators are tied if one operator of the other mode reads the parameters and buffers of all of them. For an exact
///   batch norm these are the running statistics and what is read with them.
/// - Operators are tied if the other mode runs them in another order.
///
/// If one atom of `mode` and several of `other` read a parameter or buffer, only the first of these counts. If several
/// atoms of `mode` read it, and another number of atoms of `other`, it ties nothing.
/// @return groups of operators of `mode`, for `partition_into_atoms`; none if its atoms contain them anyway
/// @cost O((operators + values) log operators), and for operators that only the other mode orders a search between them
[[nodiscard]] std::vector<std::vector<OpId>> ties_to_other_mode(const ModeOfModel& mode, const ModeOfModel& other);

}  // namespace autopar::cost
