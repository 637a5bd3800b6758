#pragma once

#include <map>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/plan/options.hpp>

#include "torch/calls/call_validator.hpp"
#include "torch/calls/step_watches.hpp"
#include "torch/deployment/deployment.hpp"
#include "torch/gradients/gradient_store.hpp"
#include "torch/gradients/loss_scaler.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/ranks/ranks.hpp"
#include "torch/results/result_node.hpp"
#include "torch/steps/step_call.hpp"

namespace autopar::gradients {

/// What became of the gradients of a call, or of several whose sum they are.
struct StepOutcome {
  bool overflow = false;  ///< some rank has one that is infinite or not a number; known with precision = fp16 only
  bool counted = false;   ///< by the loss scaler
};

/// Brings gradients of stages to `.grad`: scaled, accumulated inside no_sync and summed afterwards, copied to the host
/// where parameters are offloaded.
///
///   applier.hand_over(gradients, request, factor, /*accumulate=*/false, outcome, out);
class GradientApplier final : public calls::PendingGradients {
 public:
  /// @pre what is referred to outlives this
  GradientApplier(ranks::Ranks& ranks, parameters::ParameterStore& parameters, deployment::Deployment& deployment,
                  calls::StepWatches& watches)
      : ranks_(ranks), parameters_(parameters), deployment_(deployment), watches_(watches) {}

  // ---- one call

  /// `.grad` of the parameters that are asked for; or, where autograd returns them, their gradients in `out`, behind
  /// those of the arguments.
  /// @param factor  0-dim, of the loss's own gradient
  void hand_over(const steps::StageGradients& gradients, const results::GradientRequest& request,
                 const at::Tensor& factor, bool accumulate, StepOutcome& outcome, std::vector<at::Tensor>& out);
  /// Divides by the call's loss scale. Collective with precision = fp16.
  [[nodiscard]] StepOutcome unscale(const steps::Call& call, const steps::StageGradients& gradients,
                                    std::vector<at::Tensor>& of_arguments);
  /// Warns once where a call makes gradients while there are some of earlier calls and the plan counts one set.
  void warn_of_second_gradients();

  // ---- no_sync

  void set_accumulating(bool accumulating) { accumulating_ = accumulating; }
  [[nodiscard]] bool accumulating() const override { return accumulating_; }
  [[nodiscard]] bool has_accumulated() const override { return store_.has_accumulated(); }
  /// Sums what calls inside no_sync have made. Collective.
  void reduce_accumulated() {
    store_.reduce({deployment_.wire(), deployment_.groups(), parameters_, deployment_.plan().buckets});
  }
  /// Sums, and adds to `.grad`. Collective. @param pending  some rank has accumulated gradients
  void sync(bool pending);
  /// The user zeroes gradients: what is accumulated goes.
  void drop();

  // ---- precision = fp16

  void start_scaling(const LossScaler::State& state = {}) { scaler_.emplace(state); }
  /// None without loss scaling.
  [[nodiscard]] std::optional<LossScaler::State> scaler_state() const {
    return scaler_ ? std::optional(scaler_->state()) : std::nullopt;
  }
  [[nodiscard]] double loss_scale() const override { return scaler_ ? scaler_->scale() : 1; }

 private:
  struct LeavingGradients {
    std::map<const parameters::ShardMemory*, at::Tensor> sets;  ///< host memory, by unit
    std::vector<HandleGradient> copies;  ///< in it, complete when the device has done what is queued
  };
  void apply(const steps::StageGradients& gradients, const at::Tensor& factor, bool keep, bool accumulate);
  void flush_reduced();
  void add_to_owner(const at::Tensor& handle, const at::Tensor& gradient, bool may_take, LeavingGradients& leaving);
  void add_arrived(const LeavingGradients& leaving);
  [[nodiscard]] bool any_overflow(bool mine);
  [[nodiscard]] bool skips(StepOutcome& outcome);

  ranks::Ranks& ranks_;
  parameters::ParameterStore& parameters_;
  deployment::Deployment& deployment_;
  calls::StepWatches& watches_;
  GradientStore store_;
  std::optional<LossScaler> scaler_;
  bool accumulating_ = false;
  bool warned_of_second_gradients_ = false;
};

}  // namespace autopar::gradients
