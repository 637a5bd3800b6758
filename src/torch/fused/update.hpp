#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar::fused {

/// A step of Adam or AdamW: element-wise, as at::_fused_adam_ and at::_fused_adamw_ make it.
struct AdamUpdate {
  /// By parameter: of one element type, on one device, each parameter's of one layout without gaps.
  const std::vector<at::Tensor>&parameters, &gradients, &exp_avgs, &exp_avg_sqs;
  /// By parameter: what gets the new values as well, rounded to its type; undefined where there is none.
  const std::vector<at::Tensor>& copies;
  double lr = 0, beta1 = 0, beta2 = 0, weight_decay = 0, eps = 0;
  std::int64_t steps = 1;          ///< this one included
  bool is_decay_decoupled = true;  ///< AdamW
};

/// A step of SGD: element-wise, as at::_fused_sgd_ makes it.
struct SgdUpdate {
  /// As of AdamUpdate. @param momentum_buffers  empty without momentum
  const std::vector<at::Tensor>&parameters, &gradients, &momentum_buffers, &copies;
  double lr = 0, weight_decay = 0, momentum = 0, dampening = 0;
  bool is_nesterov = false;
  bool is_first = true;  ///< buffers have no values yet
};

/// Make the step with a kernel of the library's own: Adam in single precision, SGD as libtorch with numbers in double.
/// @return false: nothing is done, libtorch's are to do it
[[nodiscard]] bool step_in_kernels(const AdamUpdate& update);
[[nodiscard]] bool step_in_kernels(const SgdUpdate& update);

}  // namespace autopar::fused
