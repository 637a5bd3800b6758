#pragma once

#include <map>
#include <string>
#include <vector>

namespace autopar {

/// Kernels in CUDA C that are compiled where they run, on one device. NVRTC and the driver are loaded where they are:
/// nothing links them. Where they are missing, or do not know the device, there are no kernels.
class CompiledKernels {
 public:
  /// Compiles. @param source  with `extern "C"` functions of these names
  CompiledKernels(int device, const char* source, const std::vector<std::string>& names);

  [[nodiscard]] bool has(const std::string& name) const { return functions_.count(name) > 0; }

  struct Grid {
    unsigned blocks = 1, rows = 1, threads = 1;
  };
  /// In the device's current stream. @param arguments  addresses of the kernel's arguments, 4 KiB of them at most
  /// @return whether the driver took it
  [[nodiscard]] bool launch(const std::string& name, const Grid& grid, std::vector<void*> arguments) const;

 private:
  int device_;
  void* launch_ = nullptr;                  // cuLaunchKernel
  std::map<std::string, void*> functions_;  // CUfunction; what is loaded lives as long as the device's context
};

}  // namespace autopar
