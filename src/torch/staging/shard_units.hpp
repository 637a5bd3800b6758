#pragma once

#include <functional>
#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/plan/plan.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/cost/partition.hpp"
#include "torch/parameters/shards.hpp"
#include "torch/parameters/state_registry.hpp"
#include "torch/staging/staged_graph.hpp"

namespace autopar::staging {

/// The ZeRO units of a program's parameters: by reduction group, in the order in which backwards make gradients,
/// divided as the planner counts them (`sharded_buckets_of`). Each tensor shard has its own units with the same
/// parameters, one after the other. Parameters without replicas are left out, and so are parameters that something
/// outside the pipeline reads unsharded. The same on every rank.
/// @param atoms      of the program
/// @param tensor_of  returns the tensor of a parameter, with the stages that hold it
/// @pre plan.zero > 0
[[nodiscard]] std::vector<parameters::ShardUnit> shard_units(
    const OpGraph& graph, const algebra::BatchSemantics& batch_plan, const StagedGraph& division,
    const cost::AtomPartition& atoms, const Plan& plan,
    const std::function<const parameters::ManagedTensor&(ValueId)>& tensor_of);

}  // namespace autopar::staging
