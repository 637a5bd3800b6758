#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/schedule/pipeline.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/cost/partition.hpp"
#include "torch/interpret/stage_parts.hpp"
#include "torch/parameters/shards.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

namespace autopar::staging {

/// A captured program partitioned into stages, and the channels between them. A pure function of graph, plan and
/// stages, and therefore the same on every rank.
struct StagedGraph {
  Pipeline pipeline;
  std::vector<std::vector<OpId>> stage_ops;            ///< ascending
  std::vector<std::vector<ValueId>> channel_values;    ///< by channel, ascending
  std::vector<std::vector<ValueId>> group_parameters;  ///< by reduction group, last-read first
  std::vector<int> group_units;   ///< by reduction group: its ZeRO unit, -1: none; empty: no group has one
  std::vector<int> group_shards;  ///< by reduction group: the tensor shard whose replicas form the group
  std::map<OpId, tensor_parallel::ShardedStep> shard_steps;  ///< exchanges of tensor shards at their operators
  /// For parameters that tensor shards hold in slices: the slice's sizes by shard.
  std::map<ValueId, std::vector<std::vector<std::int64_t>>> parameter_slices;
  struct InGroup {
    std::vector<int> groups;  ///< by tensor shard of the stage, or one entry
    ValueId parameter;
  };
  /// For parameters in units: the groups of the parameter, its views and its copies.
  std::map<StorageId, InGroup> parameter_of_storage;
  /// For operators of segments that a whole backward recomputes: the groups that are resharded after the operator and
  /// gathered again.
  std::map<OpId, std::vector<int>> resharded_after;
};

/// The stage of each op and the mesh of each stage.
struct StageMap {
  std::vector<StageId> stage_of;            ///< by OpId; ops outside the pipeline are ignored
  std::vector<Mesh> meshes;                 ///< by stage
  std::vector<std::vector<StageId>> parts;  ///< [stage of the plan] the stages that it was divided into, ascending
};

/// Partitions a program into stages.
/// @throws InvalidArgument if a stage would read what a later stage makes, or a value that must not leave its slice
[[nodiscard]] StagedGraph divide(const OpGraph& graph, const algebra::BatchSemantics& plan, const StageMap& stages,
                                 int world);

/// Divides every stage with several replicas before each level of collectives, so that their operands can be sent
/// between the parts. Several stages of the result then run on the same ranks. Stages without ops are left out.
/// @param stages  of the plan; `parts` is ignored
/// @throws CaptureError if a collective and its operand must not be separated
[[nodiscard]] StageMap cut_at_collectives(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                          const cost::AtomPartition& atoms, const StageMap& stages);

/// Makes all ranks that hold a parameter reduce its gradient, including ranks whose stages do not read it here. Another
/// program reads it there, or the prologue does, and optimizers must step all copies alike.
/// @param holders  by ValueId: for parameters the ranks, ascending, including all ranks whose stages read it; other
/// entries are ignored
void include_holders(StagedGraph& division, const OpGraph& graph, const std::vector<std::vector<Rank>>& holders);

/// The ZeRO units of a program's parameters.
struct ShardedParameters {
  std::vector<parameters::ShardUnit> units;
  std::vector<std::vector<int>> units_of;  ///< by ValueId: units by tensor shard, or one entry; empty: unsharded
};

/// Reduces the gradients of each unit into shards, in a separate group; groups of other parameters stay. Units that no
/// stage reads are left out.
void shard_groups(StagedGraph& division, const OpGraph& graph, const algebra::BatchSemantics& plan,
                  const ShardedParameters& sharded);

/// Simulates a whole backward of each stage that gathers within compute actions. It visits the stage's operators from
/// last to first. A recomputed segment is visited first from its first operator, then from its last. If other parts
/// also read a parameter, its gradient from a segment comes after the segment. What is kept is decided for the largest
/// tensor shard, and all shards do the same.
///
/// The result is the order in which groups are gathered (Pipeline::backward_gathers) and when their buckets are full
/// (ReduceGroup::filled_after). A segment that reads more than `kept` bytes also reshards groups when it has run again.
/// It does not reshard what its backward needs first, nor what other parts read.
/// @pre backwards are whole
/// @param sharded  the units of the groups
void order_backward_gathers(StagedGraph& division, const OpGraph& graph, const algebra::BatchSemantics& plan,
                            const ShardedParameters& sharded, const interpret::RecomputedAtoms& recomputed, Bytes kept);

/// Stages for another captured program of a deployed model (another mode or signature). Each parameter and buffer keeps
/// its stage. An atom without any runs on the stage of its inputs, or else of its first reader.
/// @param home  by ValueId: the stages that hold a parameter or buffer leaf, ascending
/// @return by OpId
/// @throws CaptureError, with the op, if an op would need a value from a later stage
[[nodiscard]] std::vector<StageId> place_by_parameters(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                                       const cost::AtomPartition& atoms,
                                                       const std::vector<std::vector<StageId>>& home, int stages);

}  // namespace autopar::staging
