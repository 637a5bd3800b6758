#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace autopar::detail {

/// Whether an operator's argument is a list of tensors, or of optional ones.
inline bool is_tensor_list(const c10::IValue& value) {
  if (!value.isList()) return false;
  const auto kind = value.toList().elementType()->kind();
  if (kind == c10::TypeKind::TensorType) return true;
  return kind == c10::TypeKind::OptionalType &&
         value.toList().elementType()->castRaw<c10::OptionalType>()->getElementType()->kind() ==
             c10::TypeKind::TensorType;
}

/// Of a list.
inline bool is_optional_list(const c10::IValue& list) {
  return list.toList().elementType()->kind() == c10::TypeKind::OptionalType;
}

}  // namespace autopar::detail
