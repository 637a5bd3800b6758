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

/// A captured program cut into stages, and what travels between them. A pure function of graph, plan and stages, so the
/// same on every rank.
struct StagedGraph {
  Pipeline pipeline;
  std::vector<std::vector<OpId>> stage_ops;            ///< ascending
  std::vector<std::vector<ValueId>> channel_values;    ///< by channel, ascending
  std::vector<std::vector<ValueId>> group_parameters;  ///< by reduction group, last read first
  std::vector<int> group_units;   ///< by reduction group: unit of shards, -1 = none; empty: none at all
  std::vector<int> group_shards;  ///< by reduction group: tensor shard whose replicas it is
  std::map<OpId, tensor_parallel::ShardedStep> shard_steps;  ///< what tensor shards do at their operators
  /// Of parameters that tensor shards hold in slices: sizes, by shard
  std::map<ValueId, std::vector<std::vector<std::int64_t>>> parameter_slices;
  struct InGroup {
    std::vector<int> groups;  ///< by tensor shard of the stage, or one
    ValueId parameter;
  };
  /// Of those in units: what they, their views and their copies have
  std::map<StorageId, InGroup> parameter_of_storage;
  /// Operators of segments that are recomputed in a whole backward: groups that are resharded behind them and gathered
  /// once more.
  std::map<OpId, std::vector<int>> resharded_after;
};

/// Stages of ops and the mesh of each stage.
struct StageMap {
  std::vector<StageId> stage_of;            ///< by OpId; ops outside the pipeline are not looked at
  std::vector<Mesh> meshes;                 ///< by stage
  std::vector<std::vector<StageId>> parts;  ///< [stage of the plan] what it was cut into, ascending
};

/// @throws InvalidArgument if a stage would read what a later stage makes, or a value that may not leave its share
[[nodiscard]] StagedGraph divide(const OpGraph& graph, const algebra::BatchSemantics& plan, const StageMap& stages,
                                 int world);

/// Cuts every stage that has several replicas once more before each level of collectives, so that their operands
/// can travel between the parts: several stages of the result then run on the same ranks. Stages without ops are left
/// out.
/// @param stages  those of the plan; `parts` is not looked at
/// @throws CaptureError if a collective and its operand may not be separated
[[nodiscard]] StageMap cut_at_collectives(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                          const cost::AtomPartition& atoms, const StageMap& stages);

/// Sums gradients over all ranks that hold a parameter, also those that this program does not need it on: another one
/// reads it there, or the prologue does, and optimizers must step all copies alike.
/// @param holders  by ValueId: of parameters, ascending, at least the ranks whose stages read it; of others not looked
/// at
void include_holders(StagedGraph& division, const OpGraph& graph, const std::vector<std::vector<Rank>>& holders);

/// Where parameters lie in units of shards.
struct ShardedParameters {
  std::vector<parameters::ShardUnit> units;
  std::vector<std::vector<int>> units_of;  ///< by ValueId: by tensor shard, or one; none = held whole
};

/// Sums the gradients of units into shards, each in a group of its own; groups of the other parameters stay. Units that
/// no stage reads are left out.
void shard_groups(StagedGraph& division, const OpGraph& graph, const algebra::BatchSemantics& plan,
                  const ShardedParameters& sharded);

/// Plays a whole backward of each stage that gathers within compute actions: it goes through what the stage runs from
/// the end, and through a segment that is recomputed first from its beginning and then from its end; what others read
/// as well gets its gradients behind that. What is kept is decided for the tensor shard that has most, and all do
/// likewise. States in which order groups are gathered (Pipeline::backward_gathers), when
/// their buckets are full (ReduceGroup::filled_after), and what a segment that reads more than `kept` lets go of when
/// it has run again: not what its backward needs first, and not what others read as well.
/// @pre backwards are whole
/// @param sharded  with which the groups were made
void order_backward_gathers(StagedGraph& division, const OpGraph& graph, const algebra::BatchSemantics& plan,
                            const ShardedParameters& sharded, const interpret::RecomputedAtoms& recomputed, Bytes kept);

/// Stages for another captured program of a model that is already deployed (another mode or signature): each parameter
/// and buffer keeps its stage; atoms without any run where their inputs are, or else where their first reader is.
/// @param home  by ValueId: the stages that hold a parameter or buffer leaf, ascending
/// @return by OpId
/// @throws CaptureError naming the op that would need a value from a later stage
[[nodiscard]] std::vector<StageId> place_by_parameters(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                                       const cost::AtomPartition& atoms,
                                                       const std::vector<std::vector<StageId>>& home, int stages);

}  // namespace autopar::staging
