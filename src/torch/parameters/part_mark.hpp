#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "torch/parameters/shard_slices.hpp"

namespace autopar::parameters {

/// A rank's part of a parameter.
struct PartLayout {
  enum class Kind {
    kCopy,   ///< all of it; other ranks have copies
    kSlice,  ///< the slice of one tensor shard
    kShard,  ///< flat elements of the whole parameter or of a slice (ZeRO)
  };

  Kind kind = Kind::kCopy;
  std::string name;                 ///< of the parameter
  std::vector<std::int64_t> sizes;  ///< of the unsharded parameter
  ShardSlices elements;
  std::string description;  ///< for messages: "rank 1 has elements [12, 24) of 24"

  [[nodiscard]] bool is_part() const { return kind != Kind::kCopy; }
  /// Whether equal positions in both are equal positions of parameters with equal sizes.
  [[nodiscard]] bool matches(const PartLayout& other) const {
    return kind == other.kind && sizes == other.sizes && elements == other.elements;
  }
};

/// The mark of tensors that hold elements of a parameter: the owner handle, its gradient, and results of element-wise
/// operators on them. Shared by all of them.
class PartMark final : public c10::BackendMeta {
 public:
  explicit PartMark(PartLayout layout) : layout_(std::move(layout)) {}
  [[nodiscard]] const PartLayout& layout() const { return layout_; }

 private:
  PartLayout layout_;
};

using PartMarkPtr = c10::intrusive_ptr<PartMark>;

/// Other data attached to a tensor, which keeps the tensor's mark.
struct BesideMark : c10::BackendMeta {
  PartMarkPtr mark;
};

/// The mark of a tensor; null if there is none.
/// @cost without a mark it reads only the tensor's own memory
[[nodiscard]] PartMark* mark_of(const at::Tensor& tensor);

/// Null if the tensor is neither a part nor a copy.
[[nodiscard]] inline const PartLayout* layout_of(const at::Tensor& tensor) {
  const auto* mark = mark_of(tensor);
  return mark == nullptr ? nullptr : &mark->layout();
}

/// From now on operators on the tensor are checked (`part_guard.hpp`).
/// @pre the tensor is defined
void set_mark(const at::Tensor& tensor, PartMarkPtr mark);

void unset_mark(const at::Tensor& tensor);

/// Gives `tensor` the mark of `part`, if there is one. A tensor of other sizes is not marked.
void mark_like(const at::Tensor& tensor, const at::Tensor& part);

}  // namespace autopar::parameters
