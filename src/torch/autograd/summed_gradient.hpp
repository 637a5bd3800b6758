#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace autopar {

/// The autograd node of a whole value that operators on slices read (ShardMove::kCopy, kAssemble): each tensor shard's
/// gradient of it is a term of a sum. Weight gradients of its readers are made while the sum is under way, and given
/// from here.
/// @source Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters": column-parallel
/// layers
class SummedGradient : public torch::autograd::Node {
 public:
  /// The gradient of what the value was made of from a term, which it lets go of; it calls `meanwhile` once its
  /// exchange is under way.
  using Sum = std::function<at::Tensor(at::Tensor term, const std::function<void()>& meanwhile)>;
  /// Gradients of some parameters, made when they are called for; keeps what it needs alive.
  using Make = std::function<std::vector<at::Tensor>()>;

  /// @param own  what the value was made of. @return the value, with this node if own has a gradient
  [[nodiscard]] static at::Tensor over(const at::Tensor& own, const at::Tensor& value, Sum sum);
  /// The node of a value, if it is of this kind; else null.
  [[nodiscard]] static std::shared_ptr<SummedGradient> of(const at::Tensor& value);

  /// A reader of the value leaves to this the gradients of its parameters. @return the place of the first
  [[nodiscard]] std::size_t take_over(const std::vector<at::Tensor>& parameters);
  /// In the backward of the reader, which is before this one's.
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

}  // namespace autopar
