#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace autopar {

/// A hook of the library's own on a leaf of the user's, which sees gradients and leaves them as they are. Captures pass
/// over it, where they refuse hooks of the user's.
struct OwnHook {
  std::function<void(const at::Tensor& gradient)> look;  ///< not called without a gradient

  at::TensorBase operator()(const at::TensorBase& gradient) const;
};

/// @param leaf  of a differentiable element type; whether it requires a gradient stays as it is
/// @return its place among the leaf's hooks, for `remove_hook`
unsigned add_own_hook(const at::Tensor& leaf, OwnHook hook);

/// Whether a tensor has hooks that are none of these, and were not removed.
[[nodiscard]] bool has_hooks_of_user(const at::Tensor& tensor);

}  // namespace autopar
