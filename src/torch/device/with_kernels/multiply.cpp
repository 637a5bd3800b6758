#include "torch/device/with_kernels/multiply.hpp"

#include <algorithm>
#include <cstddef>
#include <map>

#include "kernels/nvrtc/compiled_kernels.hpp"
#include "kernels/nvrtc/factor_kernels.hpp"
#include "torch/device/device_context.hpp"

namespace autopar::devices {

namespace {

constexpr kernels::KernelSource kFactorKernels{"gradient_factor.cu", kernels::kFactorSource};

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

/// @param gradients  without gaps, all of one type that has a kernel
void multiply_in_tables(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) {
  constexpr unsigned kBlocks = 32, kThreads = 512;
  const auto type = gradients.front().scalar_type();
  const auto by = factor.reshape({}).to(type == at::kDouble ? at::kDouble : at::kFloat);
  const void* number = by.const_data_ptr();
  for (std::size_t first = 0; first < gradients.size(); first += kernels::FactorTable::kMost) {
    const auto count = std::min(gradients.size() - first, kernels::FactorTable::kMost);
    kernels::FactorTable table{};
    for (std::size_t i = 0; i < count; ++i) {
      table.data[i] = gradients[first + i].data_ptr();
      table.size[i] = gradients[first + i].numel();
    }
    void* arguments[] = {&table, &number};
    const kernels::LaunchShape shape{kBlocks, static_cast<unsigned>(count), kThreads, 1};
    if (kernels::launch_compiled(kFactorKernels, kernel_of(type), shape, arguments, by.get_device())) continue;
    const auto begin = gradients.begin() + static_cast<std::ptrdiff_t>(first);
    multiply_each({begin, begin + static_cast<std::ptrdiff_t>(count)}, factor);
  }
}

}  // namespace

void multiply_on_device(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
  const bool has_kernels = kernels::has_compiled(kFactorKernels, factor.get_device());
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
