#pragma once

#include <vector>

#include <autopar/plan/options.hpp>

#include "torch/cost/profile.hpp"
#include "torch/deployment/deployment.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/programs/captured_program.hpp"
#include "torch/ranks/ranks.hpp"
#include "torch/staging/planned_segments.hpp"
#include "torch/staging/shard_units.hpp"

namespace autopar::placement {

/// By ValueId: the stages that hold a parameter or buffer, ascending.
[[nodiscard]] std::vector<std::vector<StageId>> homes_in(const OpGraph& graph,
                                                         const parameters::ParameterStore& parameters);

/// Applies the plan's cuts to programs: stages, channels, tensor shards, groups. The planned program is divided as the
/// plan says; programs of other modes and signatures follow their parameters.
class ProgramPartitioner {
 public:
  /// @pre what is referred to outlives this
  ProgramPartitioner(ranks::Ranks& ranks, const Options& options, parameters::ParameterStore& parameters,
                     const deployment::Deployment& deployment)
      : ranks_(ranks), options_(options), parameters_(parameters), deployment_(deployment) {}

  /// The planned program: says which slices its parameters get, and divides it. Collective, once.
  /// @return by operator, its stage of the plan
  [[nodiscard]] std::vector<StageId> partition_planned(programs::CapturedProgram& program,
                                                       const cost::GraphProfile& profile);
  /// Another program. Collective. @pre parameters are placed
  void partition(programs::CapturedProgram& program);
  /// Which gathers and sums of sharded parameters the program's stages need. Collective. @pre units are known
  void share_parameters(programs::CapturedProgram& program) const;
  /// Of the planned program, with what its tensor shards exchange.
  [[nodiscard]] cost::AtomPartition planned_atoms(const programs::CapturedProgram& program) const;

 private:
  /// @param atoms  of the program as it was captured
  [[nodiscard]] std::vector<StageId> divide(programs::CapturedProgram& program, cost::AtomPartition atoms);
  [[nodiscard]] std::vector<StageId> stages_of_ops(const programs::CapturedProgram& program,
                                                   const cost::AtomPartition& atoms) const;
  void require_whole_batches(const programs::CapturedProgram& program, const std::vector<StageId>& stage_of) const;
  [[nodiscard]] staging::ShardedParameters sharded_parameters(const programs::CapturedProgram& program) const;

  // ---- tensor_sharding.cpp
  void slice_parameters(const programs::CapturedProgram& program, const cost::GraphProfile& profile);
  [[nodiscard]] tensor_parallel::LeafSlices slices_in(const programs::CapturedProgram& program,
                                                      const std::vector<StageId>& stage_of, StageId stage) const;
  /// Puts what tensor shards exchange into the program; operators get new numbers.
  void shard_program(programs::CapturedProgram& program, std::vector<StageId>& stage_of, cost::AtomPartition& atoms);
  void describe_shards(programs::CapturedProgram& program) const;

  ranks::Ranks& ranks_;
  const Options& options_;
  parameters::ParameterStore& parameters_;
  const deployment::Deployment& deployment_;
  staging::PlannedSegments segments_;  ///< of the plan
  std::uint64_t planned_hash_ = 0;     ///< of the graph that the plan divides, as captured
  cost::AtomPartition planned_atoms_;  ///< likewise
};

}  // namespace autopar::placement
