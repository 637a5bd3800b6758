#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/plan/options.hpp>
#include <autopar/runtime/executor.hpp>

#include "torch/deployment/deployment.hpp"
#include "torch/fp8/layers.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/planning/optional_files.hpp"
#include "torch/ranks/ranks.hpp"
#include "torch/steps/buffer_updates.hpp"
#include "torch/steps/step_call.hpp"
#include "torch/steps/step_trace.hpp"

namespace autopar::steps {

/// Runs this rank's stages: forward of a call, its results, and the backward pass. Members are collective: ranks wait
/// for each other's messages and sums.
///
///   runner.forward(call);                             // with a single loss, its backward pass as well
///   auto results = runner.results(call);
///   auto gradients = runner.backward(call, outputs, given, roots);   // otherwise, when autograd asks
class StepRunner {
 public:
  /// @pre what is referred to outlives this
  StepRunner(ranks::Ranks& ranks, const Options& options, parameters::ParameterStore& parameters,
             deployment::Deployment& deployment, fp8::Layers& fp8, planning::OptionalFiles& files)
      : ranks_(ranks),
        parameters_(parameters),
        deployment_(deployment),
        fp8_(fp8),
        buffers_(parameters, deployment),
        trace_(options, files, ranks, parameters, deployment) {}

  void forward(Call& call);
  /// By output of the program.
  [[nodiscard]] std::vector<at::Tensor> results(Call& call);
  /// @param outputs  differentiable outputs of the program
  /// @param given    their gradients; undefined: none on any rank
  /// @param roots    values of those that have one
  [[nodiscard]] StageGradients backward(Call& call, const std::vector<std::size_t>& outputs,
                                        const std::vector<at::Tensor>& given, const std::vector<ValueId>& roots);
  /// What the backward pass has made, zeros where nothing arrived.
  [[nodiscard]] StageGradients gradients(Call& call, const std::vector<ValueId>& roots);
  /// Gradients of arguments, summed over ranks where the argument is shared.
  [[nodiscard]] std::vector<at::Tensor> argument_gradients(Call& call);
  [[nodiscard]] StepTrace& trace() { return trace_; }
  /// From now on this hears of each action, too, beside the trace: when the host began and ended it.
  void watch_actions(decltype(ExecutorHooks::trace) watch) { watch_ = std::move(watch); }

 private:
  void begin_fp8_call();
  void run_stages(Call& call, const interpret::SliceContext& local);
  void complete_sums(Call& call);
  void run_epilogue(Call& call, const interpret::SliceContext& local);
  void execute(Call& call, Phase phase);

  ranks::Ranks& ranks_;
  parameters::ParameterStore& parameters_;
  deployment::Deployment& deployment_;
  fp8::Layers& fp8_;
  BufferUpdates buffers_;
  StepTrace trace_;
  decltype(ExecutorHooks::trace) watch_;
};

}  // namespace autopar::steps
