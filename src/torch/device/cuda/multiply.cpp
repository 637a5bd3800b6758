#include "torch/device/cuda/multiply.hpp"

#include <cstddef>

#if __has_include(<nvrtc.h>)
#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include "torch/device/cuda/factor_kernels.hpp"
#endif

#include "torch/device/device_context.hpp"

namespace autopar {

#if __has_include(<nvrtc.h>)

namespace {

/// A function of a shared library that is there where GPUs are, and that nothing links.
template <class Function>
Function loaded(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

/// The kernels in the form that the driver loads; empty where NVRTC is missing or does not know the device.
std::string compiled(int device) {
  dlopen("libcaffe2_nvrtc.so", RTLD_NOW);  // libtorch's, which knows where its NVRTC is
  auto* const library = dlopen(("libnvrtc.so." + std::to_string(CUDART_VERSION / 1000)).c_str(), RTLD_NOW);
  const auto create = loaded<decltype(&nvrtcCreateProgram)>(library, "nvrtcCreateProgram");
  const auto compile = loaded<decltype(&nvrtcCompileProgram)>(library, "nvrtcCompileProgram");
  const auto size_of = loaded<decltype(&nvrtcGetPTXSize)>(library, "nvrtcGetPTXSize");
  const auto get = loaded<decltype(&nvrtcGetPTX)>(library, "nvrtcGetPTX");
  const auto destroy = loaded<decltype(&nvrtcDestroyProgram)>(library, "nvrtcDestroyProgram");
  if (!create || !compile || !size_of || !get || !destroy) return {};
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  const auto architecture = "--gpu-architecture=compute_" + std::to_string(10 * major + minor);
  const char* options[] = {architecture.c_str()};
  nvrtcProgram program = nullptr;
  if (create(&program, kFactorSource, "gradient_factor.cu", 0, nullptr, nullptr) != NVRTC_SUCCESS) return {};
  std::string text;
  std::size_t size = 0;
  if (compile(program, 1, options) == NVRTC_SUCCESS && size_of(program, &size) == NVRTC_SUCCESS) {
    text.resize(size);
    if (get(program, text.data()) != NVRTC_SUCCESS) text.clear();
  }
  destroy(&program);
  return text;
}

/// The kernels on one device.
class FactorKernels {
 public:
  explicit FactorKernels(int device) {
    auto* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    const auto load = loaded<decltype(&cuModuleLoadData)>(driver, "cuModuleLoadData");
    const auto find = loaded<decltype(&cuModuleGetFunction)>(driver, "cuModuleGetFunction");
    launch_ = loaded<decltype(&cuLaunchKernel)>(driver, "cuLaunchKernel");
    if (!load || !find || !launch_) return;
    const auto text = compiled(device);
    CUmodule module = nullptr;  // as long as the device's context
    cudaSetDevice(device);      // makes the context, if nothing has
    if (text.empty() || load(&module, text.c_str()) != CUDA_SUCCESS) return;
    const std::pair<at::ScalarType, const char*> names[] = {{at::kFloat, "multiply_f32"},
                                                            {at::kDouble, "multiply_f64"},
                                                            {at::kHalf, "multiply_f16"},
                                                            {at::kBFloat16, "multiply_bf16"}};
    for (const auto& [type, name] : names) {
      CUfunction function = nullptr;
      if (find(&function, module, name) == CUDA_SUCCESS) functions_[type] = function;
    }
  }

  [[nodiscard]] bool take(const at::Tensor& gradient) const {
    return functions_.count(gradient.scalar_type()) > 0 && gradient.is_non_overlapping_and_dense();
  }

  /// @pre take() each, all of one type
  void multiply(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) const {
    constexpr unsigned kBlocks = 32, kThreads = 512;
    const auto type = gradients.front().scalar_type();
    const auto by = factor.reshape({}).to(type == at::kDouble ? at::kDouble : at::kFloat);
    const void* number = by.const_data_ptr();
    cudaSetDevice(by.get_device());  // the driver launches in the thread's context, which a new thread has not
    for (std::size_t first = 0; first < gradients.size(); first += FactorTable::kMost) {
      const auto count = std::min(gradients.size() - first, FactorTable::kMost);
      FactorTable table{};
      for (std::size_t i = 0; i < count; ++i) {
        table.data[i] = gradients[first + i].data_ptr();
        table.size[i] = gradients[first + i].numel();
      }
      void* arguments[] = {&table, &number};
      const auto stream = c10::cuda::getCurrentCUDAStream(by.get_device()).stream();
      const auto status = launch_(functions_.at(type), kBlocks, static_cast<unsigned>(count), 1, kThreads, 1, 1, 0,
                                  stream, arguments, nullptr);
      if (status == CUDA_SUCCESS) continue;
      const auto begin = gradients.begin() + static_cast<std::ptrdiff_t>(first);
      multiply_each({begin, begin + static_cast<std::ptrdiff_t>(count)}, factor);
    }
  }

 private:
  decltype(&cuLaunchKernel) launch_ = nullptr;
  std::map<at::ScalarType, CUfunction> functions_;
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

#else

void multiply_on_device(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
  multiply_each(tensors, factor);
}

#endif

}  // namespace autopar
