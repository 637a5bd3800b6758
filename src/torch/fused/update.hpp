#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/fused/fp8.hpp"

namespace autopar::fused {

/// A copy of a parameter that an update writes, too.
struct UpdatedCopy {
  at::Tensor memory;  ///< in bf16, fp16 or E4M3; undefined: there is none
  Fp8Scale scale{};   ///< of a copy in E4M3, which has the numbers of a bf16 copy, cast
};

/// Writes parameters to their copies. @param parameters, copies  by parameter
void write_copies(const std::vector<at::Tensor>& parameters, const std::vector<UpdatedCopy>& copies);

/// A step of Adam or AdamW, with the element-wise results of at::_fused_adam_ and at::_fused_adamw_.
struct AdamUpdate {
  /// By parameter. All have one element type and one device; the tensors of one parameter have the same layout without
  /// gaps.
  const std::vector<at::Tensor>&parameters, &gradients, &exp_avgs, &exp_avg_sqs;
  /// By parameter: what also receives the new values, rounded to its type.
  const std::vector<UpdatedCopy>& copies;
  double lr = 0, beta1 = 0, beta2 = 0, weight_decay = 0, eps = 0;
  std::int64_t steps = 1;          ///< including this one
  bool is_decay_decoupled = true;  ///< AdamW
};

/// A step of SGD, with the element-wise results of at::_fused_sgd_.
struct SgdUpdate {
  /// As in AdamUpdate. @param momentum_buffers  empty without momentum
  const std::vector<at::Tensor>&parameters, &gradients, &momentum_buffers;
  const std::vector<UpdatedCopy>& copies;
  double lr = 0, weight_decay = 0, momentum = 0, dampening = 0;
  bool is_nesterov = false;
  bool is_first = true;  ///< the momentum buffers have no values yet
};

/// Makes the step with the library's kernel: Adam in single precision, SGD like libtorch with numbers in double
/// precision.
/// @return false if nothing was done and libtorch's step must run
[[nodiscard]] bool step_in_kernels(const AdamUpdate& update);
[[nodiscard]] bool step_in_kernels(const SgdUpdate& update);

}  // namespace autopar::fused
