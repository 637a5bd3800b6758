#pragma once

#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>

namespace autopar::training {

/// Two groups, as transformers and residual networks are trained: matrices, tables and kernels, whose weights decay,
/// and what has one dimension (biases, norms), which does not.
/// @param options  of a torch::optim optimizer, with the decay of the first group
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> decayed_and_not(const std::vector<at::Tensor>& parameters,
                                                               const Options& options) {
  std::vector<at::Tensor> decayed, kept;
  for (const auto& parameter : parameters) (parameter.dim() > 1 ? decayed : kept).push_back(parameter);
  auto without = options;
  without.weight_decay(0);
  return {{decayed, std::make_unique<Options>(options)}, {kept, std::make_unique<Options>(without)}};
}

/// Sets the learning rate of all groups. The same on all ranks.
inline void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace autopar::training
