#include "torch/device/with_kernels/multiply.hpp"

#include <map>

#include <autopar/core/error.hpp>

#include "kernels/gradient_norm_source.hpp"
#include "kernels/nvrtc/compiled_kernels.hpp"
#include "torch/device/device_context.hpp"

namespace autopar::devices {

namespace {

const char* kernel_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "multiply_f32";
    case at::kDouble:
      return "multiply_f64";
    case at::kHalf:
      return "multiply_f16";
    case at::kBFloat16:
      return "multiply_bf16";
    default:
      return nullptr;
  }
}

/// @param tensors  without gaps, all of one type that has a kernel
void multiply_in_tables(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
  const bool is_double = factor.scalar_type() == at::kDouble;
  const auto by = is_double ? factor : factor.to(at::kFloat);
  std::vector<kernels::TensorMemory> all;
  for (const auto& tensor : tensors) all.push_back({tensor.data_ptr(), tensor.numel()});
  for (auto& table : kernels::tables_of(all)) {
    const void* number = by.const_data_ptr();
    int of_double = is_double ? 1 : 0;
    void* arguments[] = {&table, &number, &of_double};
    const bool queued =
        kernels::launch_compiled(kernels::kGradientNormKernels, kernel_of(tensors.front().scalar_type()), table.shape(),
                                 arguments, by.get_device());
    if (!queued)
      throw Error(
          "the GPU refused to multiply gradients; an earlier error of the device is the likely cause: "
          "run with CUDA_LAUNCH_BLOCKING=1 to find it");
  }
}

}  // namespace

void multiply_on_device(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
  const bool has_kernels = kernels::has_compiled(kernels::kGradientNormKernels, factor.get_device());
  std::map<at::ScalarType, std::vector<at::Tensor>> taken;
  std::vector<at::Tensor> others;
  for (const auto& tensor : tensors) {
    const bool takes = has_kernels && tensor.device() == factor.device() &&
                       kernel_of(tensor.scalar_type()) != nullptr && tensor.is_non_overlapping_and_dense();
    (takes ? taken[tensor.scalar_type()] : others).push_back(tensor);
  }
  for (const auto& [type, list] : taken) multiply_in_tables(list, factor);
  multiply_each(others, factor);
}

}  // namespace autopar::devices
