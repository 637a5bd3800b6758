#pragma once

#include <c10/core/Device.h>

#include "torch/calls/optimizer_watch.hpp"
#include "torch/calls/outside_gradients.hpp"
#include "torch/calls/unattached_watch.hpp"
#include "torch/parameters/parameter_store.hpp"

namespace autopar::calls {

/// What the program does to parameters between calls of the model, as this rank sees it. CallValidator compares it.
class StepWatches {
 public:
  /// @param parameters      outlive this
  /// @param several_ranks   there is somebody to compare with
  StepWatches(const parameters::ParameterStore& parameters, bool several_ranks)
      : parameters_(parameters), several_ranks_(several_ranks) {}

  void attach(torch::optim::Optimizer& optimizer) {
    steps_.watch(optimizer);
    unattached_.cover(optimizer);
  }
  /// Called once, when it is known who holds what.
  void start(c10::Device device) {
    if (several_ranks_) outside_.watch(parameters_, device);
  }
  /// Called when `.grad` of a parameter is defined or grows.
  void note_gradient(const at::Tensor& handle) {
    unattached_.note_gradient(handle);
    if (several_ranks_) steps_.note_gradient(handle, parameters_.is_whole(parameters_.of(handle)));
  }

  [[nodiscard]] OptimizerWatch& steps() { return steps_; }
  [[nodiscard]] UnattachedWatch& unattached() { return unattached_; }
  [[nodiscard]] OutsideGradients& outside() { return outside_; }

 private:
  const parameters::ParameterStore& parameters_;
  bool several_ranks_;
  OptimizerWatch steps_;
  UnattachedWatch unattached_;
  OutsideGradients outside_;
};

}  // namespace autopar::calls
