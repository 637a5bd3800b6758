#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <autopar/torch/multi_tensor_optimizer.hpp>

/// torch::optim's optimizers with steps that update all parameters of a group together. On GPUs there is one kernel for
/// each device and element type, on CPUs one pass over each parameter's memory. Steps allocate nothing.
///
/// Options, state and files are those of the base class, so that the two can replace one another at any step.
/// Parameters without a gradient are skipped. If a model computes in 16 bits, a step also writes the 16-bit copies of
/// parameters, and no call casts them.
namespace autopar::optim {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

class SGD : public torch::optim::SGD, public MultiTensorOptimizer {
 public:
  using torch::optim::SGD::SGD;

  /// @throws InvalidArgument for sparse gradients and for parameters that are not real floating point numbers; then no
  /// parameter has changed
  at::Tensor step(LossClosure closure = nullptr) override;
};

class Adam : public torch::optim::Adam, public MultiTensorOptimizer {
 public:
  using torch::optim::Adam::Adam;

  /// As SGD::step.
  at::Tensor step(LossClosure closure = nullptr) override;
};

class AdamW : public torch::optim::AdamW, public MultiTensorOptimizer {
 public:
  using torch::optim::AdamW::AdamW;

  /// As SGD::step.
  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace autopar::optim
