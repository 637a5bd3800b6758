#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <autopar/plan/plan_with_defaults.hpp>

#include "alone_transport.hpp"
#include "fake_costs.hpp"
#include "one_rank.hpp"
#include "torch/calls/call_validator.hpp"
#include "torch/deployment/deployment.hpp"
#include "torch/fp8/layers.hpp"
#include "torch/gradients/gradient_applier.hpp"
#include "torch/gradients/result_history.hpp"
#include "torch/graphs/graphed_steps.hpp"
#include "torch/parameters/attached_optimizers.hpp"
#include "torch/placement/batch_checks.hpp"
#include "torch/placement/deployer.hpp"
#include "torch/planning/plan_builder.hpp"
#include "torch/programs/program_capture.hpp"
#include "torch/programs/program_verifier.hpp"
#include "torch/steps/step_runner.hpp"

namespace autopar::test {

/// The parts of a session on one rank, as far as `captured` and `deployed` bring them: without a World, without a
/// Session, and with costs that nobody measures.
struct OneRankModel {
  /// @param run  the user's forward, on the tensors of a call
  OneRankModel(std::shared_ptr<torch::nn::Module> net,
               std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> run, Options given = {})
      : ranks(std::make_shared<OneRank>()),
        module(std::move(net)),
        forward([run = std::move(run)](const std::vector<at::Tensor>& tensors) {
          return CallResult{run(tensors), nullptr};
        }),
        options(std::move(given)) {}

  /// Takes arguments apart as a call does.
  [[nodiscard]] calls::CallArguments arguments(const std::vector<at::Tensor>& tensors) const {
    calls::CallArguments arguments;
    Flattened flattened{tensors, {}};
    for (std::size_t i = 0; i < tensors.size(); ++i) flattened.structure += 'T';
    if (const auto error = validator.inspect(flattened, arguments)) std::rethrow_exception(error);
    return arguments;
  }

  [[nodiscard]] std::shared_ptr<programs::CapturedProgram> captured(const std::vector<at::Tensor>& tensors) {
    return capture.capture(arguments(tensors), forward);
  }

  /// A program on a plan of one stage for its batch, ready to run.
  [[nodiscard]] std::shared_ptr<programs::CapturedProgram> deployed(const std::vector<at::Tensor>& tensors) {
    programs::PlannedModes modes;
    modes.add(captured(tensors), /*gradients=*/true);
    auto profile = modes.programs().profile(c10::DeviceType::CPU);
    FakeCosts costs;
    const PlanFunction planner = try_plan_with_defaults;
    planning::ReportFile report(options, files);
    const planning::PlanFiles plan_files(options, files, report);
    planning::PlanBuilder builder(*ranks, options, deployment.device(), planner, costs, plan_files);
    auto planned = modes.programs();
    deployment.adopt(builder.build(planned, profile, tensors.front().size(0), {}, {}, std::nullopt));
    deployer.place(modes, profile);
    progress.seed = deployer.make_values(*modes.planned);
    deployer.prepare(*modes.planned);
    return modes.planned;
  }

  /// A call of a program that is deployed, which has not run.
  [[nodiscard]] std::shared_ptr<steps::Call> call(const std::shared_ptr<programs::CapturedProgram>& program,
                                                  const std::vector<at::Tensor>& tensors) const {
    auto call = std::make_shared<steps::Call>();
    call->arguments = arguments(tensors);
    call->program = program;
    call->layout.local = {tensors.front().size(0)};
    call->layout.microbatches = deployment.plan().microbatches;
    call->batch = tensors.front().size(0);
    call->differentiate = true;
    call->loss_mode = program->plan.loss_mode;
    return call;
  }

  std::shared_ptr<OneRank> ranks;
  std::shared_ptr<torch::nn::Module> module;
  ForwardFunction forward;
  Options options;
  planning::OptionalFiles files{Logger()};
  calls::Progress progress;
  calls::LateFailure late_failure;
  parameters::ParameterStore parameters{*module, Rank(0)};
  parameters::AttachedOptimizers optimizers{parameters, nullptr};
  deployment::Deployment deployment{*ranks, [](const TransportOptions&) { return alone_transport(); }};
  calls::StepWatches watches{parameters, /*several_ranks=*/false};
  fp8::Layers fp8;
  gradients::GradientApplier applier{*ranks, parameters, deployment, watches};
  calls::CallValidator validator{*ranks, *module, 1, options, parameters, watches, applier, progress, late_failure};
  programs::ProgramCapture capture{*ranks, *module, {}, options, parameters, deployment};
  placement::Deployer deployer{{*ranks, options, parameters, optimizers, deployment, watches, fp8, nullptr}};
  steps::StepRunner runner{*ranks, options, parameters, deployment, fp8, files};
  graphs::GraphedSteps graphed{*ranks, options, parameters, deployment, fp8, runner};
};

}  // namespace autopar::test
