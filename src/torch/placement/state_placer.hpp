#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <autopar/capture/init_record.hpp>

#include "torch/cost/profile.hpp"
#include "torch/deployment/deployment.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/programs/captured_program.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::placement {

/// Decides which ranks hold each parameter and buffer, in which shards, and gives them their first values there.
class StatePlacer {
 public:
  /// @param init  the recorded construction of placeholders; null if parameters have values
  /// @pre what is referred to outlives this
  StatePlacer(ranks::Ranks& ranks, parameters::ParameterStore& parameters, const deployment::Deployment& deployment,
              InitRecord* init)
      : ranks_(ranks), parameters_(parameters), deployment_(deployment), init_(init) {}

  /// Sets stages and holders of each tensor.
  /// @param stage_of  by operator of `program`
  /// @param others    modes whose parameters and buffers are placed as well
  void place(const programs::CapturedProgram& program, const std::vector<StageId>& stage_of,
             const std::vector<std::shared_ptr<programs::CapturedProgram>>& others);
  /// Units of ZeRO, and of what is offloaded.
  /// @param atoms  of the program
  void add_units(const programs::CapturedProgram& program, const cost::AtomPartition& atoms);
  /// Makes or copies values where they live, and frees the others. Collective.
  /// @return the seed of rank 0's generator
  [[nodiscard]] std::uint64_t make_values();

 private:
  void offload_rest(const programs::CapturedProgram& program);
  void agree_on_generator();
  void take_values_of_rank_0();

  ranks::Ranks& ranks_;
  parameters::ParameterStore& parameters_;
  const deployment::Deployment& deployment_;
  InitRecord* init_;
};

}  // namespace autopar::placement
