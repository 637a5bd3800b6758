#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"

namespace autopar::engine {

/// Parameters of which all that a program reads is casts to bf16, and these only as weights of layers that run in 8
/// bits: such layers may be given the weight in 8 bits instead. Ascending. The same on all ranks of a stage.
/// @param parameters  of the stage, ascending
/// @param layers      of the stage, which run in 8 bits as soon as they have scales, ascending
/// @cost O(edges)
[[nodiscard]] std::vector<ValueId> fp8_weights(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                               const std::vector<ValueId>& parameters, const std::vector<OpId>& layers);

}  // namespace autopar::engine
