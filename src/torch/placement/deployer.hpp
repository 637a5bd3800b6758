#pragma once

#include <memory>

#include <autopar/capture/init_record.hpp>
#include <autopar/plan/options.hpp>

#include "torch/calls/progress.hpp"
#include "torch/calls/step_watches.hpp"
#include "torch/cost/profile.hpp"
#include "torch/deployment/deployment.hpp"
#include "torch/fp8/layers.hpp"
#include "torch/parameters/attached_optimizers.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/placement/program_partitioner.hpp"
#include "torch/placement/state_placer.hpp"
#include "torch/programs/planned_modes.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::placement {

/// Applies the plan to the model: divides its programs, places its state, and prepares what runs. All members are
/// collective.
///
///   deployer.place(modes, profile);        // once: who holds what
///   progress.seed = deployer.make_values(*modes.planned);
///   deployer.prepare(*program);            // each program
class Deployer {
 public:
  struct Parts {
    ranks::Ranks& ranks;
    const Options& options;
    parameters::ParameterStore& parameters;
    parameters::AttachedOptimizers& optimizers;
    deployment::Deployment& deployment;
    calls::StepWatches& watches;
    fp8::Layers& fp8;
    InitRecord* init;  ///< null if parameters have values
  };

  /// @pre what is referred to outlives this
  explicit Deployer(const Parts& parts)
      : parts_(parts),
        partitioner_(parts.ranks, parts.options, parts.parameters, parts.deployment),
        placer_(parts.ranks, parts.parameters, parts.deployment, parts.init) {}

  [[nodiscard]] bool deployed() const { return deployed_; }
  /// Divides what is planned, and decides who holds what. Values stay where they are.
  /// @pre the deployment has a plan
  void place(const programs::PlannedModes& modes, const cost::GraphProfile& profile);
  /// Brings values to their holders; handles refer to what this rank has from now on. @return rank 0's seed
  [[nodiscard]] std::uint64_t make_values(const programs::CapturedProgram& planned);
  /// Makes a program ready to run; divides it first, unless it is the planned one.
  void prepare(programs::CapturedProgram& program);

 private:
  void keep_copies(const programs::CapturedProgram& program);
  void start_fp8_layers(const programs::CapturedProgram& planned, const cost::GraphProfile& profile);
  void build_runtime(programs::CapturedProgram& program);
  void make_groups(programs::CapturedProgram& program);

  Parts parts_;
  ProgramPartitioner partitioner_;
  StatePlacer placer_;
  bool deployed_ = false;
};

}  // namespace autopar::placement
