#include "torch/device/cuda/multiply.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include <c10/cuda/CUDAGuard.h>

#include "torch/device/cuda/compiled_kernels.hpp"
#include "torch/device/cuda/factor_kernels.hpp"
#include "torch/device/device_context.hpp"

namespace autopar {

namespace {

const std::map<at::ScalarType, std::string>& kernel_names() {
  static const std::map<at::ScalarType, std::string> names{{at::kFloat, "multiply_f32"},
                                                           {at::kDouble, "multiply_f64"},
                                                           {at::kHalf, "multiply_f16"},
                                                           {at::kBFloat16, "multiply_bf16"}};
  return names;
}

/// The kernels on one device.
class FactorKernels {
 public:
  explicit FactorKernels(int device)
      : kernels_(device, kFactorSource, {"multiply_f32", "multiply_f64", "multiply_f16", "multiply_bf16"}) {}

  [[nodiscard]] bool take(const at::Tensor& gradient) const {
    const auto name = kernel_names().find(gradient.scalar_type());
    return name != kernel_names().end() && kernels_.has(name->second) && gradient.is_non_overlapping_and_dense();
  }

  /// @pre take() each, all of one type
  void multiply(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) const {
    constexpr unsigned kBlocks = 32, kThreads = 512;
    const auto type = gradients.front().scalar_type();
    const auto by = factor.reshape({}).to(type == at::kDouble ? at::kDouble : at::kFloat);
    const void* number = by.const_data_ptr();
    for (std::size_t first = 0; first < gradients.size(); first += FactorTable::kMost) {
      const auto count = std::min(gradients.size() - first, FactorTable::kMost);
      FactorTable table{};
      for (std::size_t i = 0; i < count; ++i) {
        table.data[i] = gradients[first + i].data_ptr();
        table.size[i] = gradients[first + i].numel();
      }
      const CompiledKernels::Grid grid{kBlocks, static_cast<unsigned>(count), kThreads};
      if (kernels_.launch(kernel_names().at(type), grid, {&table, &number})) continue;
      const auto begin = gradients.begin() + static_cast<std::ptrdiff_t>(first);
      multiply_each({begin, begin + static_cast<std::ptrdiff_t>(count)}, factor);
    }
  }

 private:
  CompiledKernels kernels_;
};

// What is loaded belongs to the device's context, which all threads of the process share.
const FactorKernels& kernels_on(int device) {
  static std::mutex mutex;
  static std::map<int, FactorKernels> loaded_kernels;
  const std::lock_guard<std::mutex> lock(mutex);
  return loaded_kernels.try_emplace(device, device).first->second;
}

}  // namespace

void multiply_on_device(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
  const c10::cuda::CUDAGuard guard(factor.device());
  const auto& kernels = kernels_on(factor.get_device());
  std::map<at::ScalarType, std::vector<at::Tensor>> taken;
  std::vector<at::Tensor> others;
  for (const auto& tensor : tensors) {
    (tensor.device() == factor.device() && kernels.take(tensor) ? taken[tensor.scalar_type()] : others)
        .push_back(tensor);
  }
  for (const auto& [type, list] : taken) kernels.multiply(list, factor);
  multiply_each(others, factor);
}

}  // namespace autopar
