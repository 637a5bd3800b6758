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
/// @pre has_kernels for the source there
/// @throws Error if the driver refuses it
template <class... Arguments>
void launch(const at::Tensor& on, const kernels::KernelSource& source, const char* function,
            const kernels::LaunchShape& shape, Arguments... arguments) {
  std::array<void*, sizeof...(Arguments)> addresses{&arguments...};
  const bool queued =
      context_of(on.device().type()).launch(source, function, shape, addresses.data(), on.device().index());
  if (!queued) {
    throw Error(std::string("the GPU refused to run ") + function +
                "; an earlier error of the device is the likely cause: run with CUDA_LAUNCH_BLOCKING=1 to find it");
  }
}

/// What kernels take for a tensor: null for an undefined one.
inline const void* data_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }
inline void* memory_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr() : nullptr; }

/// "f32", "f16" or "bf16"; null for other types, of which there are no kernels.
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

/// How many parts of a size hold all.
constexpr std::int64_t parts_for(std::int64_t all, std::int64_t part) { return (all + part - 1) / part; }

/// Partial sums [blocks, 2, columns] that kernels write and `sum_blocks` adds up.
inline at::Tensor partial_sums(const at::Tensor& on, std::int64_t blocks, std::int64_t columns) {
  return at::empty({blocks, 2, columns}, at::TensorOptions(at::kFloat).device(on.device()));
}
/// Of a kernel that calls `sum_blocks`.
inline kernels::LaunchShape over_columns(std::int64_t columns) {
  constexpr unsigned kColumns = 32, kRows = 8;
  return {static_cast<unsigned>(parts_for(columns, kColumns)), 1, kColumns, kRows};
}

/// The same numbers once more, for a second reader whose gradient a backward gets apart. In the same memory, which the
/// caller does not write to.
inline at::Tensor same_memory(const at::Tensor& result) { return result.tensor_data(); }
/// Without a backward of its own a result has one gradient, whoever reads it.
inline std::tuple<at::Tensor, at::Tensor> twice(const at::Tensor& result) { return {result, result}; }

/// Whether packs begin there.
inline bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kPackBytes == 0;
}

/// The same numbers without gaps, where packs begin.
inline at::Tensor dense_in_packs(const at::Tensor& tensor, at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  const auto dense = tensor.contiguous(format);
  return is_aligned(dense) ? dense : dense.clone();
}

/// Whether it is undefined, or numbers in single precision without gaps where `beside` is.
inline bool is_single_beside(const at::Tensor& tensor, const at::Tensor& beside) {
  return !tensor.defined() ||
         (tensor.scalar_type() == at::kFloat && tensor.is_contiguous() && tensor.device() == beside.device());
}

}  // namespace autopar::fused::detail
