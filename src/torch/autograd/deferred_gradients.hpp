#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar::autograd {

/// Gradients of parameters that the input backward of a slice defers until its weight backward.
class DeferredGradients {
 public:
  /// Parameter gradients of one call of an operator.
  struct Task {
    std::vector<ValueId> parameters;  ///< each once
    /// Returns a gradient for each of `parameters`, in fresh memory. The closure keeps its inputs alive.
    std::function<std::vector<at::Tensor>()> compute;
    /// Adds the gradients to existing sums, ordered as `parameters`, with the same effect; empty: not supported.
    std::function<void(const std::vector<at::Tensor>& sums)> add_to{};
  };

  /// Callable from any thread that runs the input backward.
  void defer(Task task);

  /// Computes the deferred gradients in the order in which the backward reached them, and frees them. `add` is called
  /// for each parameter when its last gradient is computed, with their sum. That is the value that autograd would add,
  /// with the same rounding. `before` is called with the parameters of a task before it is computed.
  /// @param sum_of  the sum to which a parameter's gradient would be added, if this function may add to it: then `add`
  ///                gets an undefined tensor. Undefined: it may not
  void compute(const std::function<void(ValueId parameter, at::Tensor sum)>& add,
               const std::function<void(const std::vector<ValueId>& parameters)>& before = {},
               const std::function<at::Tensor(ValueId parameter)>& sum_of = {});

 private:
  std::mutex mutex_;
  std::vector<Task> tasks_;
};

}  // namespace autopar::autograd
