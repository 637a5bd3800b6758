#pragma once

namespace autopar {

/// An optimizer whose step updates all its parameters with a few kernels, whatever their number. Plans then count such
/// a step, in place of kernels for each parameter. Derive an optimizer of your own from it where that holds.
class MultiTensorOptimizer {
 public:
  virtual ~MultiTensorOptimizer() = default;

 protected:
  MultiTensorOptimizer() = default;
  MultiTensorOptimizer(const MultiTensorOptimizer&) = default;
  MultiTensorOptimizer(MultiTensorOptimizer&&) = default;
  MultiTensorOptimizer& operator=(const MultiTensorOptimizer&) = default;
  MultiTensorOptimizer& operator=(MultiTensorOptimizer&&) = default;
};

}  // namespace autopar
