#include "kernels/nvrtc/compiled_kernels.hpp"

#if __has_include(<nvrtc.h>)
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <autopar/io/checksum.hpp>

#include "kernels/nvrtc/loaded_function.hpp"
#endif

namespace autopar::kernels {

#if __has_include(<nvrtc.h>)

namespace {

/// 90 of compute capability 9.0.
int architecture_of(int device) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return 10 * major + minor;
}

/// NVRTC's functions.
struct Compiler {
  Compiler() {
    dlopen("libcaffe2_nvrtc.so", RTLD_NOW);  // libtorch's, which knows where its NVRTC is
    auto* const library = dlopen(("libnvrtc.so." + std::to_string(CUDART_VERSION / 1000)).c_str(), RTLD_NOW);
    create = loaded<decltype(create)>(library, "nvrtcCreateProgram");
    compile = loaded<decltype(compile)>(library, "nvrtcCompileProgram");
    size_of = loaded<decltype(size_of)>(library, "nvrtcGetCUBINSize");
    get = loaded<decltype(get)>(library, "nvrtcGetCUBIN");
    destroy = loaded<decltype(destroy)>(library, "nvrtcDestroyProgram");
    count_architectures = loaded<decltype(count_architectures)>(library, "nvrtcGetNumSupportedArchs");
    architectures = loaded<decltype(architectures)>(library, "nvrtcGetSupportedArchs");
  }
  [[nodiscard]] bool is_there() const {
    return create && compile && size_of && get && destroy && count_architectures && architectures;
  }
  [[nodiscard]] bool knows(int architecture) const {
    int count = 0;
    if (!is_there() || count_architectures(&count) != NVRTC_SUCCESS) return false;
    std::vector<int> known(static_cast<std::size_t>(count));
    return architectures(known.data()) == NVRTC_SUCCESS && std::ranges::find(known, architecture) != known.end();
  }

  decltype(&nvrtcCreateProgram) create;
  decltype(&nvrtcCompileProgram) compile;
  decltype(&nvrtcGetCUBINSize) size_of;
  decltype(&nvrtcGetCUBIN) get;
  decltype(&nvrtcDestroyProgram) destroy;
  decltype(&nvrtcGetNumSupportedArchs) count_architectures;
  decltype(&nvrtcGetSupportedArchs) architectures;
};

const Compiler& compiler() {
  static const Compiler functions;
  return functions;
}

std::string compiled(const KernelSource& source, std::span<const char* const> options) {
  const auto& nvrtc = compiler();
  nvrtcProgram program = nullptr;
  const auto whole = std::string(kKernelPrelude) + source.text;
  if (nvrtc.create(&program, whole.c_str(), source.name, 0, nullptr, nullptr) != NVRTC_SUCCESS) return {};
  std::string code;
  std::size_t size = 0;
  if (nvrtc.compile(program, static_cast<int>(options.size()), options.data()) == NVRTC_SUCCESS &&
      nvrtc.size_of(program, &size) == NVRTC_SUCCESS) {
    code.resize(size);
    if (nvrtc.get(program, code.data()) != NVRTC_SUCCESS) code.clear();
  }
  nvrtc.destroy(&program);
  return code;
}

/// Code of the device itself: the driver would compile PTX one source after the other. Empty where NVRTC is missing, or
/// refuses. A text of many kernels is compiled by several threads, if this NVRTC can do so.
std::string compiled(const KernelSource& source, int architecture) {
  if (!compiler().is_there()) return {};
  const auto target = "--gpu-architecture=sm_" + std::to_string(architecture);
  const std::array options{target.c_str(), "--split-compile=0"};
  auto code = compiled(source, options);
  return code.empty() ? compiled(source, std::span(options).first(1)) : code;
}

/// Of compiled kernels of this source, architecture and CUDA.
std::string file_of(const KernelSource& source, int architecture) {
  const auto text = std::string(kKernelPrelude) + source.text;
  std::ostringstream name;
  name << source.name << "-sm_" << architecture << '-' << CUDART_VERSION << '-' << std::hex
       << checksum(std::as_bytes(std::span(text))) << ".kernel";
  return name.str();
}

/// The kernels of a source on one device, for as long as its context.
class CompiledKernels {
 public:
  CompiledKernels(const KernelSource& source, int device, const std::shared_ptr<CacheFolder>& folder) {
    auto* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    load_ = loaded<decltype(&cuModuleLoadData)>(driver, "cuModuleLoadData");
    find_ = loaded<decltype(&cuModuleGetFunction)>(driver, "cuModuleGetFunction");
    launch_ = loaded<decltype(&cuLaunchKernel)>(driver, "cuLaunchKernel");
    if (!load_ || !find_ || !launch_) return;
    cudaSetDevice(device);  // makes the context, if nothing has
    const auto architecture = architecture_of(device);
    const auto file = file_of(source, architecture);
    if (const auto kept = folder ? folder->read(file) : std::nullopt; kept && take(*kept)) return;
    const auto code = compiled(source, architecture);
    if (take(code) && folder) folder->write(file, code);
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
  [[nodiscard]] bool take(const std::string& code) {
    if (!code.empty() && load_(&module_, code.data()) != CUDA_SUCCESS) module_ = nullptr;
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
  void keep_in(const std::shared_ptr<CacheFolder>& folder) {
    const std::lock_guard<std::mutex> lock(mutex_);
    folder_ = folder;
  }

 private:
  using Key = std::pair<const char*, int>;
  [[nodiscard]] CompiledOnce& place_of(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return of_sources_[key];
  }
  [[nodiscard]] std::shared_ptr<CacheFolder> folder() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return folder_;
  }

  std::mutex mutex_;  ///< not held while anything is compiled
  std::shared_ptr<CacheFolder> folder_;
  std::map<Key, CompiledOnce> of_sources_;
};

AllKernels& kernels_of_process() {
  static AllKernels all;
  return all;
}

}  // namespace

int generation_of(c10::DeviceIndex device) { return architecture_of(device); }

bool has_compiler(c10::DeviceIndex device) { return compiler().knows(architecture_of(device)); }

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

void keep_compiled_in(const std::shared_ptr<CacheFolder>& folder) { kernels_of_process().keep_in(folder); }

#else

bool has_compiler(c10::DeviceIndex) { return false; }
int generation_of(c10::DeviceIndex) { return 0; }
bool has_compiled(const KernelSource&, c10::DeviceIndex) { return false; }
bool launch_compiled(const KernelSource&, const char*, const LaunchShape&, void**, c10::DeviceIndex) { return false; }
void keep_compiled_in(const std::shared_ptr<CacheFolder>&) {}

#endif

}  // namespace autopar::kernels
