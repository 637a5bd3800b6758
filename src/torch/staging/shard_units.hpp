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

/// What the ranks of a plan with ZeRO hold in shards of a program's parameters: by reduction group, filled as backwards
/// make gradients, cut as the planner counts them (`sharded_buckets_of`); of tensor shards one for each, one behind the
/// other, with the same parameters. What nobody shares or something needs whole outside the pipeline is left out. The
/// same on every rank.
/// @param atoms      of the program
/// @param tensor_of  a parameter of the program, with the stages that hold it @pre plan.zero > 0
[[nodiscard]] std::vector<parameters::ShardUnit> shard_units(
    const OpGraph& graph, const algebra::BatchSemantics& batch_plan, const StagedGraph& division,
    const cost::AtomPartition& atoms, const Plan& plan,
    const std::function<const parameters::StateTensor&(ValueId)>& tensor_of);

}  // namespace autopar::staging
