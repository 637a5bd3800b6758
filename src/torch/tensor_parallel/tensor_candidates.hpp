#pragma once

#include <cstdint>
#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/units.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"

namespace autopar::tensor_parallel {

/// How shards divide a linear layer that is not part of a pair.
enum class SingleLayers : std::uint8_t {
  kByOutputs,  ///< by classes if its loss follows (column-parallel); otherwise replicated
  kByInputs    ///< by inputs (row-parallel), but a class head with at least half as many classes as inputs by classes
};

/// Operators that tensor shards can run together on slices, with unsharded inputs and outputs. One kind is a column-
/// and a row-parallel linear layer with the operators between them (attention heads, gates). Others are an embedding, a
/// class head with its loss, or one row-parallel layer.
struct TensorCandidate {
  LeafSlices leaves;
  std::vector<OpId> ops;                ///< ascending
  std::int64_t units = 1;               ///< heads, hidden units, classes: an upper bound on the number of shards
  std::vector<ValueId> copied{};        ///< replicated values whose gradients are summed
  std::vector<ValueId> added_up{};      ///< results that are partial sums
  std::vector<ValueId> class_losses{};  ///< results of losses whose statistics are gathered
  std::vector<ValueId> spread{};        ///< replicated values that are read in slices, and whose gradients are gathered
  bool by_inputs = false;               ///< a single layer, divided by inputs
};

/// Finds candidates by trial. A layer (linear, or a product with a parameter) is divided by outputs, in units that the
/// shapes of later values suggest. Operators follow until their results are unsharded again. Among several ways it
/// keeps the one with the fewest exchanged elements for each divided element. Candidates share no parameter.
/// @cost O(operators) in total, times the number of ways (a few)
[[nodiscard]] std::vector<TensorCandidate> find_tensor_candidates(const OpGraph& graph,
                                                                  const algebra::BatchSemantics& plan,
                                                                  SingleLayers singles = SingleLayers::kByOutputs);

/// The share of a program's parameters that are in single row-parallel layers.
/// @cost as finding the candidates
[[nodiscard]] double share_by_inputs(const OpGraph& graph, const algebra::BatchSemantics& plan);

}  // namespace autopar::tensor_parallel
