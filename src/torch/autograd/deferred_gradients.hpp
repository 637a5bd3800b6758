#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar {

/// Gradients of parameters that the input backward of a slice defers until its weight backward.
class DeferredGradients {
 public:
  /// Gradients of one call of an operator.
  struct Task {
    std::vector<ValueId> parameters;  ///< each once
    /// Like `parameters`, in fresh memory; keeps what it needs alive
    std::function<std::vector<at::Tensor>()> compute;
    /// Adds them to sums that are there, like `parameters`, to the same effect; empty: there is no way to
    std::function<void(const std::vector<at::Tensor>& sums)> add_to{};
  };

  /// From whichever thread runs the input backward.
  void defer(Task task);

  /// Computes what was deferred, in the order in which the backward came by, and lets go of it. `add` is called for
  /// each parameter when its last gradient is there, with their sum: what autograd would add, with the same rounding.
  /// `before` is called with the parameters of a task before it is computed.
  /// @param sum_of  what a parameter's gradient would be added to, if that may be done here: then `add` gets nothing.
  ///                Undefined: it may not
  void compute(const std::function<void(ValueId parameter, at::Tensor sum)>& add,
               const std::function<void(const std::vector<ValueId>& parameters)>& before = {},
               const std::function<at::Tensor(ValueId parameter)>& sum_of = {});

 private:
  std::mutex mutex_;
  std::vector<Task> tasks_;
};

}  // namespace autopar
