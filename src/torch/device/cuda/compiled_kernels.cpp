#include "torch/device/cuda/compiled_kernels.hpp"

#if __has_include(<nvrtc.h>)
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>
#endif

namespace autopar {

#if __has_include(<nvrtc.h>)

namespace {

/// A function of a shared library that is there where GPUs are, and that nothing links.
template <class Function>
Function loaded(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

/// In the form that the driver loads; empty where NVRTC is missing or does not know the device.
std::string compiled(int device, const char* source) {
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
  if (create(&program, source, "autopar.cu", 0, nullptr, nullptr) != NVRTC_SUCCESS) return {};
  std::string text;
  std::size_t size = 0;
  if (compile(program, 1, options) == NVRTC_SUCCESS && size_of(program, &size) == NVRTC_SUCCESS) {
    text.resize(size);
    if (get(program, text.data()) != NVRTC_SUCCESS) text.clear();
  }
  destroy(&program);
  return text;
}

}  // namespace

CompiledKernels::CompiledKernels(int device, const char* source, const std::vector<std::string>& names)
    : device_(device) {
  auto* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto load = loaded<decltype(&cuModuleLoadData)>(driver, "cuModuleLoadData");
  const auto find = loaded<decltype(&cuModuleGetFunction)>(driver, "cuModuleGetFunction");
  launch_ = loaded<void*>(driver, "cuLaunchKernel");
  if (!load || !find || !launch_) return;
  const auto text = compiled(device, source);
  CUmodule module = nullptr;
  cudaSetDevice(device);  // makes the context, if nothing has
  if (text.empty() || load(&module, text.c_str()) != CUDA_SUCCESS) return;
  for (const auto& name : names) {
    CUfunction function = nullptr;
    if (find(&function, module, name.c_str()) == CUDA_SUCCESS) functions_[name] = function;
  }
}

bool CompiledKernels::launch(const std::string& name, const Grid& grid, std::vector<void*> arguments) const {
  cudaSetDevice(device_);  // the driver launches in the thread's context, which a new thread has not
  const auto launch = reinterpret_cast<decltype(&cuLaunchKernel)>(launch_);
  const auto stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_)).stream();
  return launch(static_cast<CUfunction>(functions_.at(name)), grid.blocks, grid.rows, 1, grid.threads, 1, 1, 0, stream,
                arguments.data(), nullptr) == CUDA_SUCCESS;
}

#else

CompiledKernels::CompiledKernels(int device, const char*, const std::vector<std::string>&) : device_(device) {}

bool CompiledKernels::launch(const std::string&, const Grid&, std::vector<void*>) const { return false; }

#endif

}  // namespace autopar
