#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <autopar/core/error.hpp>

#include "torch/device/device_context.hpp"

namespace autopar::fused::detail {

/// Queues a kernel on the device of `on`, with these arguments by value.
/// @pre has_kernels for the source on that device
/// @throws Error if the driver rejects the launch
template <class... Arguments>
void launch(const at::Tensor& on, const kernels::KernelSource& source, const char* function,
            const kernels::LaunchShape& shape, Arguments... arguments) {
  std::array<void*, sizeof...(Arguments)> addresses{&arguments...};
  const bool queued =
      devices::context_of(on.device().type()).launch(source, function, shape, addresses.data(), on.device().index());
  if (!queued) {
    throw Error(std::string("the GPU refused to run ") + function +
                "; an earlier error of the device is the likely cause: run with CUDA_LAUNCH_BLOCKING=1 to find it");
  }
}

/// The pointer that kernels take for a tensor: null for an undefined tensor.
inline const void* data_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }
inline void* memory_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr() : nullptr; }

/// "f32", "f16" or "bf16"; null for other types, which have no kernels.
inline const char* kernel_type(c10::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "f32";
    case at::kHalf:
      return "f16";
    case at::kBFloat16:
      return "bf16";
    default:
      return nullptr;
  }
}

constexpr std::int64_t kPackBytes = 16;

/// The number of parts of a size that hold all.
constexpr std::int64_t parts_for(std::int64_t all, std::int64_t part) { return (all + part - 1) / part; }

/// Partial sums [blocks, 2, columns] that kernels write and `sum_blocks` adds up.
inline at::Tensor partial_sums(const at::Tensor& on, std::int64_t blocks, std::int64_t columns) {
  return at::empty({blocks, 2, columns}, at::TensorOptions(at::kFloat).device(on.device()));
}
/// Launch shape of a kernel that calls `sum_blocks`.
inline kernels::LaunchShape over_columns(std::int64_t columns) {
  constexpr unsigned kColumns = 32, kRows = 8;
  return {static_cast<unsigned>(parts_for(columns, kColumns)), 1, kColumns, kRows};
}

/// The same tensor again, for a second reader whose gradient a backward receives separately. Both share memory, which
/// the caller does not write.
inline at::Tensor same_memory(const at::Tensor& result) { return result.tensor_data(); }
/// For a result without a custom backward: all its readers share one gradient.
inline std::tuple<at::Tensor, at::Tensor> twice(const at::Tensor& result) { return {result, result}; }

/// Whether the tensor's first element is aligned to a pack.
inline bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kPackBytes == 0;
}

/// The same numbers without gaps and aligned to packs.
inline at::Tensor dense_in_packs(const at::Tensor& tensor, at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  const auto dense = tensor.contiguous(format);
  return is_aligned(dense) ? dense : dense.clone();
}

/// Whether a tensor is undefined, or contiguous in single precision on the device of `beside`.
inline bool is_single_beside(const at::Tensor& tensor, const at::Tensor& beside) {
  return !tensor.defined() ||
         (tensor.scalar_type() == at::kFloat && tensor.is_contiguous() && tensor.device() == beside.device());
}

}  // namespace autopar::fused::detail
