#include "shard/tensor_buffer.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>

namespace autopar {

Buffer buffer_of(at::Tensor tensor) {
  AUTOPAR_ASSERT(tensor.is_non_overlapping_and_dense(), "a transport moves memory without gaps");
  auto owner = std::make_shared<at::Tensor>(std::move(tensor));
  auto* data = owner->numel() > 0 ? static_cast<std::byte*>(owner->data_ptr()) : nullptr;
  const auto bytes = static_cast<std::size_t>(owner->nbytes());
  return {data, bytes, std::move(owner)};
}

DType summed_dtype(c10::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kFloat:
    case at::kComplexFloat:
      return DType::kF32;
    case at::kDouble:
    case at::kComplexDouble:
      return DType::kF64;
    case at::kLong:
      return DType::kI64;
    default:
      throw InvalidArgument(std::string("cannot sum tensors of type ") + c10::toString(type) +
                            " over ranks; use a floating or complex type, or int64");
  }
}

}  // namespace autopar
