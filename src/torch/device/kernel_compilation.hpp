#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include <c10/core/Device.h>

#include "torch/device/device_context.hpp"

namespace autopar::devices {

/// Compiles kernels on several threads while the caller does other work:
///
///   const KernelCompilation ahead(context, device, sources);  // returns at once
///   …
///   context.has_kernels(sources[3], device);                  // waits for that one alone
///
/// Errors are reported to the caller that needs the kernels.
class KernelCompilation {
 public:
  /// @param most  maximal number of threads, at most one for each source; usually as many as the process may use
  KernelCompilation(const DeviceContext& context, c10::DeviceIndex device, std::vector<kernels::KernelSource> sources,
                    std::size_t most = std::thread::hardware_concurrency());
  KernelCompilation(const KernelCompilation&) = delete;
  KernelCompilation& operator=(const KernelCompilation&) = delete;
  /// Starts no other compilation, and waits for those in progress.
  ~KernelCompilation();

 private:
  void compile();

  const DeviceContext& context_;
  c10::DeviceIndex device_;
  std::vector<kernels::KernelSource> sources_;
  std::atomic<std::size_t> next_ = 0;  ///< index of the next source
  std::vector<std::thread> threads_;
};

}  // namespace autopar::devices
