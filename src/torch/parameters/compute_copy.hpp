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

/// A copy of a parameter in a smaller element type, which stages compute with, kept from call to call. It hangs on the
/// parameter's tensor, so that an optimizer finds it there and writes both in one pass over memory.
///
///   ComputeCopy::keep(weight, at::kBFloat16);
///   ComputeCopy::of(weight)->current(weight);   // cast
///   ComputeCopy::of(weight)->current(weight);   // as it is: nobody has written to the weight
///
/// Who tells whether somebody has is libtorch's copy-on-write memory: a parameter that its copy agrees with is marked
/// as such memory, which ends when anyone asks for a pointer to write through: operators (those that count no version,
/// too), `data()`, other views, the program itself. Nothing is copied by that, as there is no second reader. Not
/// noticed is who kept such a pointer from before.
///
/// One thread at a time, and nobody may ask for such a pointer within at::parallel_for (libtorch refuses).
class ComputeCopy final : public BesideMark {
 public:
  explicit ComputeCopy(c10::ScalarType type) : type_(type) {}

  /// From now on `parameter` has one. Not where its memory has other users, gaps, or is not libtorch's own.
  static void keep(const at::Tensor& parameter, c10::ScalarType type);
  /// Lets go of it.
  static void drop(const at::Tensor& parameter);
  /// Null if there is none.
  [[nodiscard]] static ComputeCopy* of(const at::Tensor& parameter);

  [[nodiscard]] c10::ScalarType type() const { return type_; }
  /// With the parameter's values, sizes and strides: casts it unless the copy agrees with it. Who holds what was given
  /// earlier keeps those values: then the copy moves to new memory.
  [[nodiscard]] const at::Tensor& current(const at::Tensor& parameter);
  /// Where who writes to the parameter may write the same, rounded; undefined if there is no such memory, or someone
  /// holds it. After both, `agrees`.
  [[nodiscard]] at::Tensor to_write(const at::Tensor& parameter) const;
  /// Parameter and copy have the same values now.
  void agrees(const at::Tensor& parameter);

 private:
  [[nodiscard]] bool is_current(const at::Tensor& parameter) const;

  c10::ScalarType type_;
  at::Tensor copy_;
  // What the parameter was when the two agreed.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  const void* mark_ = nullptr;
  std::uint32_t version_ = 0;
};

}  // namespace autopar::parameters
