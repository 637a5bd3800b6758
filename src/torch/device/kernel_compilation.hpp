#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include <c10/core/Device.h>

#include "torch/device/device_context.hpp"

namespace autopar::devices {

/// Kernels that are compiled side by side, on threads of their own, while who will need them does something else:
///
///   const KernelCompilation ahead(context, device, sources);  // returns at once
///   …
///   context.has_kernels(sources[3], device);                  // waits for that one alone
///
/// What goes wrong is told to who asks for the kernels.
class KernelCompilation {
 public:
  /// @param most  threads, of which there are no more than sources; as a rule, as many as the process may use
  KernelCompilation(const DeviceContext& context, c10::DeviceIndex device, std::vector<kernels::KernelSource> sources,
                    std::size_t most = std::thread::hardware_concurrency());
  KernelCompilation(const KernelCompilation&) = delete;
  KernelCompilation& operator=(const KernelCompilation&) = delete;
  /// Begins no other, and waits for those under way.
  ~KernelCompilation();

 private:
  void compile();

  const DeviceContext& context_;
  c10::DeviceIndex device_;
  std::vector<kernels::KernelSource> sources_;
  std::atomic<std::size_t> next_ = 0;  ///< of them
  std::vector<std::thread> threads_;
};

}  // namespace autopar::devices
