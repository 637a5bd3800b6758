#pragma once

#include <optional>
#include <vector>

#include <torch/optim/optimizer.h>

#include <autopar/capture/init_record.hpp>
#include <autopar/plan/plan.hpp>

#include "torch/parameters/parameter_store.hpp"

namespace autopar::parameters {

/// The optimizers that step a model, as far as its parameters' placement depends on them.
class AttachedOptimizers {
 public:
  /// @param init  the recorded construction of placeholders; null if parameters have values
  /// @pre what is referred to outlives this
  AttachedOptimizers(const ParameterStore& parameters, InitRecord* init) : parameters_(parameters), init_(init) {}

  /// The optimizer outlives the model's training.
  void add(torch::optim::Optimizer& optimizer) { optimizers_.push_back(&optimizer); }
  [[nodiscard]] const std::vector<torch::optim::Optimizer*>& all() const { return optimizers_; }
  [[nodiscard]] bool empty() const { return optimizers_.empty(); }
  /// Bytes of state for each byte of a parameter, the largest of all; none if nothing is attached.
  /// @param ranks  that may share the state
  [[nodiscard]] std::optional<double> state_factor(int ranks) const;
  /// Whether the step of each is a few kernels (MultiTensorOptimizer).
  [[nodiscard]] bool are_multi_tensor() const;
  /// @throws InvalidArgument if the plan shards or offloads parameters and nobody is known to step them
  /// @param inference  nothing is trained
  void require_for(const Plan& plan, bool inference) const;
  /// Makes state that was made for whole parameters fit what this rank holds.
  /// @pre parameters are placed
  void fit(torch::optim::Optimizer& optimizer) const;
  void fit_all() const {
    for (auto* optimizer : optimizers_) fit(*optimizer);
  }

 private:
  void refuse_to_save_parts(torch::optim::Optimizer& optimizer) const;

  const ParameterStore& parameters_;
  InitRecord* init_;
  std::vector<torch::optim::Optimizer*> optimizers_;
};

}  // namespace autopar::parameters
