#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "torch/fp8/layers.hpp"
#include "torch/fused/update.hpp"
#include "torch/parameters/part_mark.hpp"

namespace autopar::parameters {

/// A copy of a parameter in a smaller element type, which stages compute with and which is kept across calls. It is
/// attached to the parameter's tensor, so that an optimizer finds it and writes both in one pass over memory.
///
///   ComputeCopy::keep(weight, at::kBFloat16);
///   ComputeCopy::of(weight)->current(weight);   // casts
///   ComputeCopy::of(weight)->current(weight);   // does not cast: nothing has written to the weight
///
/// The weight of a layer in 8 bits has a copy in E4M3 in its place, from the first call that asks for it on. Calls that
/// run in 16 bits meanwhile make the other copy again, for themselves.
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
  /// The copy in E4M3 [m, n] by the scales of the next call, which it tells the magnitudes of the 16-bit copy. Casts
  /// unless it agrees with parameter and scales. Undefined if the parameter's rows have gaps.
  /// @pre n is a multiple of 16
  [[nodiscard]] at::Tensor current_in_8_bits(const at::Tensor& parameter, const fp8::NextScale& next);
  /// The memory where a writer of the parameter may write the same values, rounded: of the copy in 8 bits, if there is
  /// one. Undefined if there is none, or if something holds it. Call `note_written` after both writes.
  [[nodiscard]] fused::UpdatedCopy to_write(const at::Tensor& parameter) const;
  /// Declares that the parameter and what `to_write` gave have the same values now.
  void note_written(const at::Tensor& parameter);

 private:
  struct In8Bits {
    at::Tensor rows;
    fp8::NextScale scale;
    std::int64_t made = -1;  ///< which of these scales the rows are cast by
  };

  /// Whether nothing has written to the parameter since copies agreed with it.
  [[nodiscard]] bool is_unchanged(const at::Tensor& parameter) const;
  void agrees(const at::Tensor& parameter);

  c10::ScalarType type_;
  at::Tensor copy_;  ///< undefined, or made from the parameter as it was when the two agreed
  std::optional<In8Bits> in_8_bits_;
  // The parameter's state when copies agreed with it.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  const void* mark_ = nullptr;
  std::uint32_t version_ = 0;
};

}  // namespace autopar::parameters
