#pragma once

#include <cstdint>
#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/units.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"

namespace autopar::tensor_parallel {

/// What shards make of a linear layer that is no part of a pair.
enum class SingleLayers : std::uint8_t {
  kByOutputs,  ///< slices of classes where their loss follows; others are whole
  kByInputs    ///< slices of inputs, but of classes if a class head has half as many of them or more
};

/// Operators that tensor shards can run together on slices: a column and a row linear layer with what lies between
/// (heads of attention, gates), an embedding, a class head with its loss, a linear layer by inputs. What enters and
/// leaves them is whole.
struct TensorCandidate {
  LeafSlices leaves;
  std::vector<OpId> ops;                ///< ascending
  std::int64_t units = 1;               ///< heads, hidden units, classes: at most so many shards
  std::vector<ValueId> copied{};        ///< whole values whose gradients are added up
  std::vector<ValueId> added_up{};      ///< results that are added up
  std::vector<ValueId> class_losses{};  ///< results of losses, whose statistics are gathered
  std::vector<ValueId> spread{};        ///< whole values that are read in slices, whose gradients are brought together
  bool by_inputs = false;               ///< a single layer, of whose inputs each shard has some
};

/// Finds them by trying: a layer (linear, or a product with a parameter) is cut by outputs, in units that the shapes
/// behind it suggest, and operators follow, until their results are whole again. Of several ways the one is kept that
/// exchanges least for each element that it cuts. No parameter is in two.
/// @cost O(operators) in all, times the ways that shapes suggest (a few)
[[nodiscard]] std::vector<TensorCandidate> find_tensor_candidates(const OpGraph& graph,
                                                                  const algebra::BatchSemantics& plan,
                                                                  SingleLayers singles = SingleLayers::kByOutputs);

/// The part of a program's parameters that single layers by inputs have.
/// @cost that of finding them
[[nodiscard]] double share_by_inputs(const OpGraph& graph, const algebra::BatchSemantics& plan);

}  // namespace autopar::tensor_parallel
