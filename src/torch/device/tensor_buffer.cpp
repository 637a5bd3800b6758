#include "torch/device/tensor_buffer.hpp"

#include <cstddef>
#include <memory>
#include <utility>

namespace autopar {

Buffer buffer_of(at::Tensor tensor) {
  auto owner = std::make_shared<at::Tensor>(std::move(tensor));
  auto* data = owner->numel() > 0 ? static_cast<std::byte*>(owner->data_ptr()) : nullptr;
  const auto bytes = static_cast<std::size_t>(owner->nbytes());
  return {data, bytes, std::move(owner)};
}

}  // namespace autopar
