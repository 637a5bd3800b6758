#pragma once

#include <string>
#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/cost/model_profile.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/cost/partition.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"
#include "torch/tensor_parallel/tensor_candidates.hpp"

namespace autopar::cost {

/// The planner's profile of a captured model, and the map from its ids to the captured graph.
struct GraphProfile {
  ModelProfile model;
  AtomPartition atoms;                                     ///< atom k is node k of `model.graph`
  std::vector<ValueId> parameter_values;                   ///< by ParameterId: parameters by last read, then buffers
  std::vector<ParameterId> parameter_ids;                  ///< by ValueId; none for other values
  std::vector<tensor_parallel::LeafSlices> region_slices;  ///< by tensor region of `model`: slices of its parameters
  std::vector<std::string> in_8_bits;                      ///< weights of layers whose products run in 8 bits
};

/// Counts work and memory of the captured program by rules; nothing is run.
///
/// - Flops: 2mnk for products, and accordingly for convolutions and attention; otherwise one for each element.
/// - Bytes: operands and results once.
/// - Backward: the products that the gradients need; twice the forward traffic for memory-bound ops.
/// - Saved bytes: what libtorch's derivative formulas save, once for each memory, at the atom that makes the memory.
///   Values of other stages or the caller are not counted (the planner counts them at boundaries).
/// - Ops of prologue and epilogue are left out.
/// @param device  whose kernels will run: masks of dropout, scores of attention and copies for convolutions differ
/// @param ties    see partition_into_atoms; ties change the atoms, and therefore the hash
/// @param singles  how tensor shards divide linear layers that are not part of a pair
/// @param in_8_bits  weights of layers whose products run in 8 bits. Their memory is counted in 16 bits, as in the
///                   first call
/// @cost O((ops + values) log ops), a few microseconds for each op
[[nodiscard]] GraphProfile profile_graph(
    const OpGraph& graph, const algebra::BatchSemantics& plan, c10::DeviceType device = c10::DeviceType::CPU,
    const std::vector<std::vector<OpId>>& ties = {},
    tensor_parallel::SingleLayers singles = tensor_parallel::SingleLayers::kByOutputs,
    const std::vector<std::string>& in_8_bits = {});

}  // namespace autopar::cost
