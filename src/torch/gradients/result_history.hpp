#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <autopar/plan/options.hpp>

#include "torch/calls/call_validator.hpp"
#include "torch/deployment/deployment.hpp"
#include "torch/gradients/gradient_applier.hpp"
#include "torch/graphs/graphed_steps.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/ranks/ranks.hpp"
#include "torch/results/result_node.hpp"
#include "torch/steps/step_call.hpp"
#include "torch/steps/step_runner.hpp"

namespace autopar::gradients {

/// Gives a call's results their history in autograd's graph, and answers when autograd asks for gradients behind them.
///
/// With a single loss the backward pass has run within the call: what is asked for is scaled and handed over. Otherwise
/// all ranks first agree on the gradients of results, then run the backward pass.
class ResultHistory {
 public:
  struct Parts {
    std::shared_ptr<ranks::Ranks> ranks;
    const Options& options;
    const parameters::ParameterStore& parameters;
    deployment::Deployment& deployment;
    calls::CallValidator& validator;
    steps::StepRunner& runner;
    graphs::GraphedSteps& graphed;
    GradientApplier& applier;
  };

  /// @pre what is referred to outlives this
  explicit ResultHistory(Parts parts) : parts_(std::move(parts)) {}

  /// Collective. @pre the call has run
  /// @param owner  of this and its parts: autograd's graph keeps it alive
  void attach(const std::shared_ptr<const void>& owner, const std::shared_ptr<steps::Call>& call,
              std::vector<at::Tensor>& results);

 private:
  struct Agreed {
    std::vector<bool> asked;               ///< by differentiable result: it gets a gradient on this rank
    std::vector<bool> defined;             ///< by differentiable result: it gets a gradient on some rank
    bool pending = false;                  ///< some rank has accumulated gradients
    graphs::obstacle::Bits obstacles = 0;  ///< to a replay, of all ranks
  };
  void attach_to_loss(const std::shared_ptr<const void>& owner, steps::Call& call, std::vector<at::Tensor>& results);
  void attach_to_outputs(const std::shared_ptr<const void>& owner, const std::shared_ptr<steps::Call>& call,
                         std::vector<at::Tensor>& results);
  [[nodiscard]] results::History history_of(steps::Call& call, const std::vector<ValueId>& roots) const;
  [[nodiscard]] torch::autograd::edge_list parameter_edges(const programs::ReachedParameters& offered) const;
  [[nodiscard]] std::vector<at::Tensor> gradients_behind(steps::Call& call, const std::vector<std::size_t>& outputs,
                                                         const std::vector<at::Tensor>& of_results,
                                                         const results::GradientRequest& request);
  [[nodiscard]] Agreed agree(const steps::Call& call, const std::vector<at::Tensor>& of_results,
                             const results::GradientRequest& request);
  [[nodiscard]] std::map<ValueId, at::Tensor> common_gradients(const steps::Call& call,
                                                               const std::vector<std::size_t>& outputs,
                                                               const std::vector<at::Tensor>& of_results,
                                                               const std::vector<bool>& defined);
  void require_same(const at::Tensor& mine, const at::Tensor& mean, const at::Tensor& squares, std::size_t result);
  [[nodiscard]] std::vector<at::Tensor> run(steps::Call& call, const std::vector<std::size_t>& outputs,
                                            const std::vector<at::Tensor>& of_results,
                                            const std::map<ValueId, at::Tensor>& common, const Agreed& agreed,
                                            const results::GradientRequest& request);
  [[nodiscard]] parameters::StateId absent_parameter(const results::GradientRequest& request,
                                                     std::size_t offered) const;
  void require_here(parameters::StateId absent, std::size_t rank) const;
  void warn_of_own_loss(const steps::Call& call, const std::vector<std::size_t>& outputs,
                        const std::vector<at::Tensor>& of_results);

  Parts parts_;
  bool warned_of_own_loss_ = false;
};

}  // namespace autopar::gradients
