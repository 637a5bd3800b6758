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

/// What must share a stage in one mode of a model, so that every division of it into stages divides another mode as
/// well, with parameters and buffers where they are: operators whose parameters and buffers one operator of the other
/// mode reads (of an exact batch norm the running statistics and what they are read with), and operators that the other
/// mode puts in another order. Of a parameter or buffer that one atom reads here and several there only the first
/// counts; where several read it here and another number of them there, it ties nothing.
/// @return groups of operators of `mode`, for `partition_into_atoms`; none where its atoms hold them together anyway
/// @cost O((operators + values) log operators), and for operators that only the other mode puts in order a search
/// between
[[nodiscard]] std::vector<std::vector<OpId>> ties_to_other_mode(const ModeOfModel& mode, const ModeOfModel& other);

}  // namespace autopar::cost
