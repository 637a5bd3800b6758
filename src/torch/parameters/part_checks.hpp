#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include "torch/parameters/part_mark.hpp"

namespace autopar::parameters {

/// A tensor among the arguments of an operator.
struct PartOperand {
  const at::Tensor* tensor;
  PartMark* mark;
  bool is_written;

  [[nodiscard]] bool is_number() const { return tensor->dim() == 0; }
  [[nodiscard]] bool is_part() const { return mark != nullptr && mark->layout().is_part(); }
};

using PartOperands = c10::SmallVector<PartOperand, 6>;

/// Checks that the operands of an element-wise operator hold the same elements at the same positions.
/// @param name  returns the operator's name for the message
/// @return the mark of the results; null if they are ordinary tensors
/// @throws InvalidArgument otherwise
[[nodiscard]] PartMark* require_one_layout(const PartOperands& operands, c10::function_ref<std::string()> name);

/// Marks a result or a written tensor if it has the sizes of the mark's tensor.
/// @param mark  may be null
inline void mark_made(const at::Tensor& made, PartMark* mark, at::IntArrayRef sizes) {
  if (mark != nullptr && made.defined() && mark_of(made) == nullptr && made.sizes() == sizes)
    set_mark(made, PartMarkPtr::reclaim_copy(mark));
}

[[noreturn]] void refuse_whole(const std::string& op, const PartLayout& layout);
[[noreturn]] void refuse_draw(const std::string& op, const PartLayout& layout);
[[noreturn]] void refuse_sizes(const std::string& op, const PartOperand& part, const PartOperand& other);
[[noreturn]] void refuse_set_data(const PartLayout& layout);

}  // namespace autopar::parameters
