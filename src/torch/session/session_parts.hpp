#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <torch/nn/module.h>

#include <autopar/capture/init_record.hpp>
#include <autopar/runtime/world.hpp>

#include "torch/calls/call_validator.hpp"
#include "torch/calls/late_failure.hpp"
#include "torch/calls/progress.hpp"
#include "torch/calls/step_watches.hpp"
#include "torch/checkpoint/model_checkpoints.hpp"
#include "torch/collectives/parameter_sums.hpp"
#include "torch/collectives/whole_calls.hpp"
#include "torch/deployment/deployment.hpp"
#include "torch/fp8/layers.hpp"
#include "torch/gradients/gradient_applier.hpp"
#include "torch/gradients/result_history.hpp"
#include "torch/graphs/graphed_steps.hpp"
#include "torch/parameters/attached_optimizers.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/placement/batch_checks.hpp"
#include "torch/placement/deployer.hpp"
#include "torch/planning/optional_files.hpp"
#include "torch/planning/report_file.hpp"
#include "torch/programs/program_cache.hpp"
#include "torch/programs/program_capture.hpp"
#include "torch/programs/program_verifier.hpp"
#include "torch/ranks/ranks.hpp"
#include "torch/session/session_options.hpp"
#include "torch/steps/step_runner.hpp"

namespace autopar::session {

/// The parts of a session, in the order of construction: each knows parts above it, and none knows the session. Size:
/// this is where all parts meet.
struct SessionParts {
  SessionParts(World& world, std::shared_ptr<torch::nn::Module> model, Options code, std::shared_ptr<InitRecord> record,
               std::span<const std::byte> members);

  // ---- what all parts share
  std::shared_ptr<ranks::WorldRanks> ranks;
  std::shared_ptr<torch::nn::Module> module;
  SessionOptions options;
  std::shared_ptr<InitRecord> init;  ///< null if parameters have values
  planning::OptionalFiles files;
  planning::ReportFile report;
  calls::Progress progress;
  calls::LateFailure late_failure;
  // ---- state
  parameters::ParameterStore parameters;
  parameters::AttachedOptimizers optimizers;
  deployment::Deployment deployment;
  calls::StepWatches watches;
  gradients::GradientApplier gradients;
  fp8::Layers fp8;
  // ---- phases of a call
  calls::CallValidator validator;
  programs::ProgramCapture capture;
  programs::ProgramVerifier verifier;
  programs::ProgramCache programs;
  placement::Deployer deployer;
  placement::BatchChecks checks;
  steps::StepRunner runner;
  graphs::GraphedSteps graphed;
  gradients::ResultHistory history;
  // ---- what users ask for between calls
  collectives::ParameterSums sums;
  collectives::WholeCalls wholes;
  checkpoint::ModelCheckpoints checkpoints;
};

}  // namespace autopar::session
