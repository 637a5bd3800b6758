#pragma once

#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace autopar::optim::detail {

/// The key of tensors that one multi-tensor operation processes: device, element type, number of steps so far.
struct ListKey {
  c10::DeviceType device;
  c10::DeviceIndex index;
  at::ScalarType dtype;
  std::int64_t steps;

  auto operator<=>(const ListKey&) const = default;
};

[[nodiscard]] ListKey key_of(const at::Tensor& parameter, std::int64_t steps);

/// The closure's loss, computed with gradients enabled; undefined without a closure.
[[nodiscard]] at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure);

/// @throws InvalidArgument, with the name `optimizer`, for a sparse gradient or a parameter of integers or complex
/// numbers
void require_dense_real(const torch::optim::Optimizer& parameters, const char* optimizer);

/// The tensor's values with the strides and element type of `like`: the tensor itself or a copy. Multi-tensor kernels
/// require equal layouts of all their lists.
[[nodiscard]] at::Tensor laid_out_like(const at::Tensor& tensor, const at::Tensor& like);

/// Gives a tensor of an optimizer's state, which may come from a file or another optimizer, the layout of `like`; zeros
/// if there is none.
const at::Tensor& state_like(at::Tensor& state, const at::Tensor& like);

/// Parameters as memory without gaps: the parameters, or copies of those that are views with gaps.
class ContiguousParameters {
 public:
  [[nodiscard]] at::Tensor of(const at::Tensor& parameter);
  /// Writes the copies back to the parameters.
  void write_back() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

}  // namespace autopar::optim::detail
