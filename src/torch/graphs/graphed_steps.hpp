#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Stream.h>

#include <autopar/plan/options.hpp>

#include "torch/deployment/deployment.hpp"
#include "torch/device/device_recording.hpp"
#include "torch/graphs/obstacle.hpp"
#include "torch/graphs/recorded_step.hpp"
#include "torch/graphs/repeated_calls.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/ranks/ranks.hpp"
#include "torch/steps/step_call.hpp"
#include "torch/steps/step_runner.hpp"

namespace autopar::graphs {

/// Runs steps, and replays their device work as a CUDA graph where calls repeat. Results are those of StepRunner.
///
/// Ranks run each step alike: before it they tell each other what keeps them from replaying it (obstacle), and what
/// one of them cannot record, none replays.
///
///   const auto of_all = …;  // all ranks' graphed.obstacles(…), combined with |
///   graphed.run(call, of_all);
///   auto results = runner.results(*call);
///   auto gradients = graphed.backward(*call, {outputs, given, roots, asked, of_all});
class GraphedSteps {
 public:
  /// @pre what is referred to outlives this
  GraphedSteps(ranks::Ranks& ranks, const Options& options, parameters::ParameterStore& parameters,
               deployment::Deployment& deployment, fp8::Layers& fp8, steps::StepRunner& runner)
      : ranks_(ranks),
        options_(options),
        parameters_(parameters),
        deployment_(deployment),
        fp8_(fp8),
        runner_(runner) {}

  /// Whether steps of the program are captured where they repeat.
  [[nodiscard]] bool may_record(programs::CapturedProgram& program) const;
  /// What keeps this rank from replaying the next call.
  /// @param known  the program that it will probably run; null: not known
  /// @param sums_wait  gradients of earlier calls, or of this one, wait to be summed
  [[nodiscard]] obstacle::Bits obstacles(const programs::CapturedProgram* known, bool sums_wait, double loss_scale);
  /// Forward, with a single loss the backward pass as well. Collective.
  /// @param of_all  obstacles of all ranks
  void run(const std::shared_ptr<steps::Call>& call, obstacle::Bits of_all);

  /// A backward of a loss outside the model, as StepRunner::backward takes it.
  struct Backward {
    const std::vector<std::size_t>& outputs;
    const std::vector<at::Tensor>& given;
    const std::vector<ValueId>& roots;
    std::vector<bool> asked;  ///< by output: autograd has given this rank its gradient
    obstacle::Bits of_all;    ///< obstacles of all ranks
  };
  /// What keeps this rank from replaying the backward of a call.
  /// @param plain  autograd asks for the gradients of all parameters
  [[nodiscard]] obstacle::Bits obstacles_behind(const steps::Call& call, const std::vector<bool>& asked,
                                                bool plain) const;
  /// Collective.
  [[nodiscard]] steps::StageGradients backward(steps::Call& call, const Backward& asked);
  /// @throws InvalidArgument if the call was replayed and a parameter was written since: a replay reads it where it
  /// lies
  void require_same_parameters(const steps::Call& call) const;
  /// Forgets what was captured.
  void drop() { recorded_.reset(); }
  /// Calls that were replayed.
  [[nodiscard]] std::int64_t replayed() const { return replayed_; }

 private:
  struct Recorded {
    std::unique_ptr<devices::DeviceRecording> work;
    RecordedExchanges exchanges;
  };
  [[nodiscard]] bool may_record_here() const;
  [[nodiscard]] bool may_repeat(const steps::Call& call, obstacle::Bits of_all) const;
  [[nodiscard]] bool has_gradients() const;
  [[nodiscard]] StepConditions conditions_of(programs::CapturedProgram& program, double loss_scale);
  [[nodiscard]] bool has_memory_for(int steps) const;
  [[nodiscard]] c10::Stream recording_stream();
  void run_eagerly(steps::Call& call, obstacle::Bits of_all);
  void run_beside_recording(steps::Call& call);
  [[nodiscard]] std::optional<Recorded> recording_of(steps::Call& call, const std::function<std::string()>& prepare,
                                                     const std::function<void()>& work,
                                                     const devices::DeviceRecording* beside = nullptr);
  [[nodiscard]] bool record_step(const std::shared_ptr<steps::Call>& call);
  [[nodiscard]] bool can_replay(obstacle::Bits of_all);
  void replay(const std::shared_ptr<steps::Call>& call);
  [[nodiscard]] std::vector<std::int64_t> versions_of_parameters() const;
  void record_backward(steps::Call& call, const Backward& asked);
  void log(const std::string& text) const { ranks_.logger(LogModule::kSession).info(text); }

  ranks::Ranks& ranks_;
  const Options& options_;
  parameters::ParameterStore& parameters_;
  deployment::Deployment& deployment_;
  fp8::Layers& fp8_;
  steps::StepRunner& runner_;
  RepeatedCalls repeats_;
  std::optional<RecordedStep> recorded_;  ///< of the calls that `repeats_` says
  std::optional<c10::Stream> stream_;     ///< of warmup calls and captures
  std::int64_t replayed_ = 0;
};

}  // namespace autopar::graphs
