#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace autopar::autograd {

/// The autograd node of a whole value that operators on slices read (ShardMove::kCopy, kAssemble). Each tensor shard's
/// gradient of the value is a term of a sum. While the sum is communicated, this node computes the weight gradients of
/// the value's readers, and returns them.
/// @source Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters": column-parallel
/// layers
class SummedGradient : public torch::autograd::Node {
 public:
  /// Turns a term into the gradient of the value's source. It releases the term, and calls `meanwhile` once its
  /// communication has started.
  using Sum = std::function<at::Tensor(at::Tensor term, const std::function<void()>& meanwhile)>;
  /// Computes gradients of some parameters when called. The closure keeps its inputs alive.
  using Make = std::function<std::vector<at::Tensor>()>;

  /// @param own  the value's source. @return the value, with this node if `own` needs a gradient
  [[nodiscard]] static at::Tensor over(const at::Tensor& own, const at::Tensor& value, Sum sum);
  /// The node of a value if it is a SummedGradient; otherwise null.
  [[nodiscard]] static std::shared_ptr<SummedGradient> of(const at::Tensor& value);

  /// Makes this node responsible for the gradients of a reader's parameters. @return the position of the first
  [[nodiscard]] std::size_t take_over(const std::vector<at::Tensor>& parameters);
  /// Called in the backward of the reader, which precedes this node's backward.
  void put(std::size_t place, Make make);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;
  std::string name() const override { return "SummedGradientBackward"; }

 private:
  SummedGradient(const at::Tensor& own, Sum sum);

  struct Task {
    std::size_t place;
    Make make;
  };
  Sum sum_;
  std::vector<Task> tasks_;
};

}  // namespace autopar::autograd
