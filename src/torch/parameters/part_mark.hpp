#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "torch/parameters/slab.hpp"

namespace autopar::parameters {

/// What a rank has of a parameter.
struct PartLayout {
  enum class Kind {
    kCopy,   ///< all of it, as other ranks have
    kSlice,  ///< what one tensor shard has
    kShard,  ///< flat elements, of the whole or of a slice (ZeRO)
  };

  Kind kind = Kind::kCopy;
  std::string name;                 ///< of the parameter
  std::vector<std::int64_t> sizes;  ///< of the whole
  Slab elements;
  std::string description;  ///< for people: "rank 1 has elements [12, 24) of 24"

  [[nodiscard]] bool is_part() const { return kind != Kind::kCopy; }
  /// Whether equal places in both are equal places of parameters of equal sizes.
  [[nodiscard]] bool matches(const PartLayout& other) const {
    return kind == other.kind && sizes == other.sizes && elements == other.elements;
  }
};

/// What a tensor that has to do with a parameter carries: the owner handle, its gradient, and what operators made of
/// them place by place. Shared by all of them.
class PartMark final : public c10::BackendMeta {
 public:
  explicit PartMark(PartLayout layout) : layout_(std::move(layout)) {}
  [[nodiscard]] const PartLayout& layout() const { return layout_; }

 private:
  PartLayout layout_;
};

using PartMarkPtr = c10::intrusive_ptr<PartMark>;

/// What else hangs on a tensor, and keeps its mark.
struct BesideMark : c10::BackendMeta {
  PartMarkPtr mark;
};

/// Null if there is none. @cost no look at other memory than the tensor's own where there is none
[[nodiscard]] PartMark* mark_of(const at::Tensor& tensor);

/// Null if it is no part, nor a copy.
[[nodiscard]] inline const PartLayout* layout_of(const at::Tensor& tensor) {
  const auto* mark = mark_of(tensor);
  return mark == nullptr ? nullptr : &mark->layout();
}

/// From now on operators on the tensor, which must be defined, are looked at (`part_guard.hpp`).
void set_mark(const at::Tensor& tensor, PartMarkPtr mark);

void unset_mark(const at::Tensor& tensor);

/// Gives `tensor` the mark of `part`, if it has one, or nothing. A tensor of other sizes stays as it is.
void mark_like(const at::Tensor& tensor, const at::Tensor& part);

}  // namespace autopar::parameters
