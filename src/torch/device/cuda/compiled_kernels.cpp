#include "torch/device/cuda/compiled_kernels.hpp"

#if __has_include(<nvrtc.h>)
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include "torch/device/cuda/loaded_function.hpp"
#include "torch/device/kept_files.hpp"
#endif

namespace autopar {

#if __has_include(<nvrtc.h>)

namespace {

/// "compute_90".
std::string architecture_of(int device) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return "compute_" + std::to_string(10 * major + minor);
}

/// PTX; empty where NVRTC is missing, or refuses.
std::string compiled(const KernelSource& source, const std::string& architecture) {
  dlopen("libcaffe2_nvrtc.so", RTLD_NOW);  // libtorch's, which knows where its NVRTC is
  auto* const library = dlopen(("libnvrtc.so." + std::to_string(CUDART_VERSION / 1000)).c_str(), RTLD_NOW);
  const auto create = loaded<decltype(&nvrtcCreateProgram)>(library, "nvrtcCreateProgram");
  const auto compile = loaded<decltype(&nvrtcCompileProgram)>(library, "nvrtcCompileProgram");
  const auto size_of = loaded<decltype(&nvrtcGetPTXSize)>(library, "nvrtcGetPTXSize");
  const auto get = loaded<decltype(&nvrtcGetPTX)>(library, "nvrtcGetPTX");
  const auto destroy = loaded<decltype(&nvrtcDestroyProgram)>(library, "nvrtcDestroyProgram");
  if (!create || !compile || !size_of || !get || !destroy) return {};
  const auto target = "--gpu-architecture=" + architecture;
  const char* options[] = {target.c_str()};
  nvrtcProgram program = nullptr;
  const auto whole = std::string(kKernelPrelude) + source.text;
  if (create(&program, whole.c_str(), source.name, 0, nullptr, nullptr) != NVRTC_SUCCESS) return {};
  std::string text;
  std::size_t size = 0;
  if (compile(program, 1, options) == NVRTC_SUCCESS && size_of(program, &size) == NVRTC_SUCCESS) {
    text.resize(size);
    if (get(program, text.data()) != NVRTC_SUCCESS) text.clear();
  }
  destroy(&program);
  return text;
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

/// Compiled kernels of this source, architecture and CUDA.
std::filesystem::path file_of(const std::filesystem::path& folder, const KernelSource& source,
                              const std::string& architecture) {
  std::ostringstream name;
  name << source.name << '-' << architecture << '-' << CUDART_VERSION << '-' << std::hex
       << hash_of(std::string(kKernelPrelude) + source.text) << ".ptx";
  return folder / name.str();
}

/// The kernels of a source on one device, for as long as its context.
class CompiledKernels {
 public:
  CompiledKernels(const KernelSource& source, int device, const std::filesystem::path& folder) {
    auto* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    load_ = loaded<decltype(&cuModuleLoadData)>(driver, "cuModuleLoadData");
    find_ = loaded<decltype(&cuModuleGetFunction)>(driver, "cuModuleGetFunction");
    launch_ = loaded<decltype(&cuLaunchKernel)>(driver, "cuLaunchKernel");
    if (!load_ || !find_ || !launch_) return;
    cudaSetDevice(device);  // makes the context, if nothing has
    const auto architecture = architecture_of(device);
    const auto file = folder.empty() ? std::filesystem::path() : file_of(folder, source, architecture);
    if (!file.empty() && take(content_of(file))) return;
    const auto text = compiled(source, architecture);
    if (take(text) && !file.empty()) keep_file(file, text);
  }

  [[nodiscard]] bool are_there() const { return module_ != nullptr; }

  /// @pre one thread at a time
  [[nodiscard]] CUfunction function(const char* name) {
    const auto [at, is_new] = functions_.try_emplace(name, nullptr);
    if (is_new && find_(&at->second, module_, name) != CUDA_SUCCESS) at->second = nullptr;
    return at->second;
  }

  [[nodiscard]] bool launch(CUfunction function, const LaunchShape& shape, void** arguments, CUstream stream) const {
    return launch_(function, shape.blocks_x, shape.blocks_y, 1, shape.threads_x, shape.threads_y, 1, 0, stream,
                   arguments, nullptr) == CUDA_SUCCESS;
  }

 private:
  [[nodiscard]] bool take(const std::string& text) {
    if (!text.empty() && load_(&module_, text.c_str()) != CUDA_SUCCESS) module_ = nullptr;
    return module_ != nullptr;
  }

  decltype(&cuModuleLoadData) load_ = nullptr;
  decltype(&cuModuleGetFunction) find_ = nullptr;
  decltype(&cuLaunchKernel) launch_ = nullptr;
  CUmodule module_ = nullptr;
  std::map<std::string, CUfunction, std::less<>> functions_;
};

/// Kernels that are compiled by who asks first, for whom others who ask for them wait.
class CompiledOnce {
 public:
  /// @param folder  gives that where compiled kernels are kept
  template <class Folder>
  void compile(const KernelSource& source, int device, const Folder& folder) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!kernels_) kernels_.emplace(source, device, folder());
  }
  /// @pre compiled
  [[nodiscard]] bool are_there() const { return kernels_->are_there(); }
  [[nodiscard]] bool launch(const char* function, const LaunchShape& shape, void** arguments, CUstream stream) {
    CUfunction found = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (kernels_->are_there()) found = kernels_->function(function);
    }
    return found != nullptr && kernels_->launch(found, shape, arguments, stream);
  }

 private:
  std::mutex mutex_;
  std::optional<CompiledKernels> kernels_;
};

// What is loaded belongs to the devices' contexts, which all threads of the process share.
class AllKernels {
 public:
  CompiledOnce& of(const KernelSource& source, int device) {
    auto& kernels = place_of({source.text, device});
    kernels.compile(source, device, [this] { return folder(); });
    return kernels;
  }
  void keep_in(const std::filesystem::path& folder) {
    const std::lock_guard<std::mutex> lock(mutex_);
    folder_ = folder;
  }

 private:
  using Key = std::pair<const char*, int>;
  [[nodiscard]] CompiledOnce& place_of(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return of_sources_[key];
  }
  [[nodiscard]] std::filesystem::path folder() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return folder_;
  }

  std::mutex mutex_;  ///< not held while anything is compiled
  std::filesystem::path folder_;
  std::map<Key, CompiledOnce> of_sources_;
};

AllKernels& kernels_of_process() {
  static AllKernels all;
  return all;
}

}  // namespace

bool has_compiled(const KernelSource& source, c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard guard(device);
  return kernels_of_process().of(source, device).are_there();
}

bool launch_compiled(const KernelSource& source, const char* function, const LaunchShape& shape, void** arguments,
                     c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard guard(device);
  cudaSetDevice(device);  // the driver launches in the thread's context, which a new thread has not
  auto& kernels = kernels_of_process().of(source, device);
  return kernels.launch(function, shape, arguments, c10::cuda::getCurrentCUDAStream(device).stream());
}

void keep_compiled_in(const std::filesystem::path& folder) { kernels_of_process().keep_in(folder); }

#else

bool has_compiled(const KernelSource&, c10::DeviceIndex) { return false; }
bool launch_compiled(const KernelSource&, const char*, const LaunchShape&, void**, c10::DeviceIndex) { return false; }
void keep_compiled_in(const std::filesystem::path&) {}

#endif

}  // namespace autopar
