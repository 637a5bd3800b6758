#pragma once

#include <ATen/core/Tensor.h>

namespace autopar::ir {

/// Whether nothing else refers to the tensor or to any part of its memory, so that its holder may keep or overwrite it.
[[nodiscard]] inline bool is_only_owner(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.has_storage() && tensor.storage().use_count() == 1 &&
         tensor.storage().nbytes() == tensor.nbytes() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

}  // namespace autopar::ir
