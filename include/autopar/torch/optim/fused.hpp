#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

/// torch::optim's optimizers with steps over all parameters of a group at once: one kernel for each device and element
/// type on GPUs, one pass over each parameter's memory on CPUs, nothing allocated. Options, state and files are those
/// of the base class: the two take over from one another at any step. Parameters without a gradient are skipped. Where
/// a model computes in 16 bits, a step writes the copies that it computes with as well, and no call casts them again.
namespace autopar::optim {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

class SGD : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;

  /// @throws InvalidArgument for sparse gradients and for parameters that are no real floating point numbers; no
  /// parameter has changed then
  at::Tensor step(LossClosure closure = nullptr) override;
};

class Adam : public torch::optim::Adam {
 public:
  using torch::optim::Adam::Adam;

  /// As SGD::step.
  at::Tensor step(LossClosure closure = nullptr) override;
};

class AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;

  /// As SGD::step.
  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace autopar::optim
