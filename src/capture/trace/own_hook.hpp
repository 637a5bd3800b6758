#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace autopar::trace {

/// A hook of the library on a user's leaf, which observes gradients and does not change them. Captures ignore it, but
/// refuse hooks of the user.
struct OwnHook {
  std::function<void(const at::Tensor& gradient)> look;  ///< not called without a gradient

  at::TensorBase operator()(const at::TensorBase& gradient) const;
};

/// @param leaf  a tensor of a differentiable element type; its `requires_grad` does not change
/// @return its position among the leaf's hooks, for `remove_hook`
unsigned add_own_hook(const at::Tensor& leaf, OwnHook hook);

/// Whether a tensor has hooks that are no OwnHook and were not removed.
[[nodiscard]] bool has_hooks_of_user(const at::Tensor& tensor);

}  // namespace autopar::trace
