#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/cost/model_profile.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/cost/partition.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"
#include "torch/tensor_parallel/tensor_candidates.hpp"

namespace autopar::cost {

/// What the planner knows of a captured model, and how its ids lead back to the captured graph.
struct GraphProfile {
  ModelProfile model;
  AtomPartition atoms;                                     ///< atom k is node k of `model.graph`
  std::vector<ValueId> parameter_values;                   ///< by ParameterId: parameters in named order, then buffers
  std::vector<ParameterId> parameter_ids;                  ///< by ValueId; none for other values
  std::vector<tensor_parallel::LeafSlices> region_slices;  ///< by tensor region of `model`: how its parameters are cut
};

/// Counts work and memory of the captured program by rule; nothing is run.
///
/// Flops: 2mnk for products, the same for convolutions and attention, one an element else. Bytes: operands and results
/// once. Backward: the products that the gradients need; twice the forward traffic for memory-bound ops. Saved bytes:
/// what libtorch's derivative formulas keep, once a memory, at the atom that makes the memory; what comes from another
/// stage or the caller is not counted (the planner counts it as boundary). Ops of prologue and epilogue are left out.
/// @param device  whose kernels will run: masks of dropout, scores of attention and copies for convolutions differ
/// @param ties    see partition_into_atoms; with some the hash is another, as the atoms are
/// @param singles  what tensor shards would make of linear layers that are no part of a pair
/// @cost O((ops + values) log ops), a few microseconds an op
[[nodiscard]] GraphProfile profile_graph(
    const OpGraph& graph, const algebra::BatchSemantics& plan, c10::DeviceType device = c10::DeviceType::CPU,
    const std::vector<std::vector<OpId>>& ties = {},
    tensor_parallel::SingleLayers singles = tensor_parallel::SingleLayers::kByOutputs);

}  // namespace autopar::cost
