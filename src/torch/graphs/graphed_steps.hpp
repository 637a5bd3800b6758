#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Stream.h>

#include <autopar/plan/options.hpp>

#include "torch/deployment/deployment.hpp"
#include "torch/device/device_recording.hpp"
#include "torch/graphs/recorded_step.hpp"
#include "torch/graphs/repeated_calls.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/ranks/ranks.hpp"
#include "torch/steps/step_call.hpp"
#include "torch/steps/step_runner.hpp"

namespace autopar::graphs {

/// Runs steps, and replays their device work as a CUDA graph where calls repeat. Results are those of StepRunner.
///
///   graphed.run(call, /*nothing_waits=*/true);
///   auto results = runner.results(*call);
///   auto gradients = graphed.backward(*call, outputs, given, roots, request.plain);
class GraphedSteps {
 public:
  /// @pre what is referred to outlives this
  GraphedSteps(ranks::Ranks& ranks, const Options& options, parameters::ParameterStore& parameters,
               deployment::Deployment& deployment, steps::StepRunner& runner)
      : ranks_(ranks), options_(options), parameters_(parameters), deployment_(deployment), runner_(runner) {}

  /// Whether steps of the program are captured where they repeat.
  [[nodiscard]] bool may_record(programs::CapturedProgram& program) const;
  /// Forward, with a single loss the backward pass as well.
  /// @param nothing_waits  no gradients of earlier calls wait to be summed
  void run(const std::shared_ptr<steps::Call>& call, bool nothing_waits);
  /// As StepRunner::backward, of a loss outside the model.
  /// @param plain  autograd asks for the gradients of all parameters
  [[nodiscard]] steps::StageGradients backward(steps::Call& call, const std::vector<std::size_t>& outputs,
                                               const std::vector<at::Tensor>& given, const std::vector<ValueId>& roots,
                                               bool plain);
  /// @throws InvalidArgument if the call was replayed and a parameter was written since: a replay reads it where it
  /// lies
  void require_same_parameters(const steps::Call& call) const;
  /// Forgets what was captured.
  void drop() { recorded_.reset(); }
  /// Calls that were replayed.
  [[nodiscard]] std::int64_t replayed() const { return replayed_; }

 private:
  void run_beside_recording(steps::Call& call);
  [[nodiscard]] bool may_repeat(const steps::Call& call) const;
  [[nodiscard]] bool has_gradients() const;
  [[nodiscard]] StepConditions conditions_of(const steps::Call& call);
  [[nodiscard]] bool has_memory_for_two() const;
  [[nodiscard]] c10::Stream recording_stream();
  [[nodiscard]] std::unique_ptr<devices::DeviceRecording> recording_of(
      steps::Call& call, const std::function<void()>& work, const devices::DeviceRecording* beside = nullptr);
  [[nodiscard]] bool record_step(steps::Call& call);
  [[nodiscard]] bool can_replay(const steps::Call& call);
  void replay(const std::shared_ptr<steps::Call>& call);
  [[nodiscard]] std::vector<std::int64_t> versions_of_parameters() const;
  void record_backward(steps::Call& call, const std::vector<std::size_t>& outputs, const std::vector<at::Tensor>& given,
                       const std::vector<ValueId>& roots);
  void log(const std::string& text) const { ranks_.logger(LogModule::kSession).info(text); }

  ranks::Ranks& ranks_;
  const Options& options_;
  parameters::ParameterStore& parameters_;
  deployment::Deployment& deployment_;
  steps::StepRunner& runner_;
  RepeatedCalls repeats_;
  std::optional<RecordedStep> recorded_;  ///< of the calls that `repeats_` says
  std::optional<c10::Stream> stream_;     ///< of warmup calls and captures
  std::int64_t replayed_ = 0;
};

}  // namespace autopar::graphs
