#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "torch/parameters/part_mark.hpp"

namespace autopar::parameters {

/// A copy of a parameter in a smaller element type, which stages compute with and which is kept across calls. It is
/// attached to the parameter's tensor, so that an optimizer finds it and writes both in one pass over memory.
///
///   ComputeCopy::keep(weight, at::kBFloat16);
///   ComputeCopy::of(weight)->current(weight);   // casts
///   ComputeCopy::of(weight)->current(weight);   // does not cast: nothing has written to the weight
///
/// Writes are detected by libtorch's copy-on-write memory. While a parameter agrees with its copy, its memory is marked
/// as copy-on-write. The mark is removed when anything asks for a writable pointer: an operator (even one that
/// increments no version), `data()`, another view, the program itself. Nothing is copied then, since there is no second
/// reader. A writer that obtained its pointer earlier is not detected.
///
/// Used by one thread at a time. No one may ask for a writable pointer within at::parallel_for (libtorch refuses).
class ComputeCopy final : public BesideMark {
 public:
  explicit ComputeCopy(c10::ScalarType type) : type_(type) {}

  /// Gives `parameter` a copy, unless its memory has other users, has gaps, or is not libtorch's own.
  static void keep(const at::Tensor& parameter, c10::ScalarType type);
  /// Removes the copy.
  static void drop(const at::Tensor& parameter);
  /// Null if there is none.
  [[nodiscard]] static ComputeCopy* of(const at::Tensor& parameter);

  [[nodiscard]] c10::ScalarType type() const { return type_; }
  /// The copy with the parameter's values, sizes and strides; casts unless the two agree. Holders of an earlier result
  /// keep its values: the copy then moves to new memory.
  [[nodiscard]] const at::Tensor& current(const at::Tensor& parameter);
  /// The memory where a writer of the parameter may write the same values, rounded. Undefined if there is none, or if
  /// something holds it. Call `agrees` after both writes.
  [[nodiscard]] at::Tensor to_write(const at::Tensor& parameter) const;
  /// Declares that parameter and copy have the same values now.
  void agrees(const at::Tensor& parameter);

 private:
  [[nodiscard]] bool is_current(const at::Tensor& parameter) const;

  c10::ScalarType type_;
  at::Tensor copy_;
  // The parameter's state when the two agreed.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  const void* mark_ = nullptr;
  std::uint32_t version_ = 0;
};

}  // namespace autopar::parameters
