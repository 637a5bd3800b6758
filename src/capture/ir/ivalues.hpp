#pragma once

#include <cstddef>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>

namespace autopar::ir {

/// Whether an operator's argument is a list of tensors, or of optional ones.
inline bool is_tensor_list(const c10::IValue& value) {
  if (!value.isList()) return false;
  const auto kind = value.toList().elementType()->kind();
  if (kind == c10::TypeKind::TensorType) return true;
  return kind == c10::TypeKind::OptionalType &&
         value.toList().elementType()->castRaw<c10::OptionalType>()->getElementType()->kind() ==
             c10::TypeKind::TensorType;
}

/// Whether a list is one of optional values.
inline bool is_optional_list(const c10::IValue& list) {
  return list.toList().elementType()->kind() == c10::TypeKind::OptionalType;
}

/// Visits each tensor argument and each element of a list of tensors; some may be undefined.
/// @param base   position in `stack` of the first argument
/// @param visit  visit(const at::Tensor&)
template <class Visit>
void for_each_tensor(const torch::jit::Stack& stack, std::size_t base, const Visit& visit) {
  const auto look = [&](const c10::IValue& value) {
    if (value.isTensor()) visit(value.toTensor());
  };
  for (std::size_t i = base; i < stack.size(); ++i) {
    if (!is_tensor_list(stack[i])) {
      look(stack[i]);
      continue;
    }
    for (const c10::IValue& element : stack[i].toListRef()) look(element);
  }
}

}  // namespace autopar::ir
