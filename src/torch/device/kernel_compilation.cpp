#include "torch/device/kernel_compilation.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

namespace autopar::devices {

KernelCompilation::KernelCompilation(const DeviceContext& context, c10::DeviceIndex device,
                                     std::vector<kernels::KernelSource> sources, std::size_t most)
    : context_(context), device_(device), sources_(std::move(sources)) {
  const auto count = std::min(std::max<std::size_t>(most, 1), sources_.size());
  threads_.reserve(count);
  try {
    while (threads_.size() < count) threads_.emplace_back([this] { compile(); });
  } catch (const std::system_error&) {
    // The process may have no more threads; kernels that are left are compiled when they are needed.
  }
}

KernelCompilation::~KernelCompilation() {
  next_ = sources_.size();
  for (auto& thread : threads_) thread.join();
}

void KernelCompilation::compile() {
  for (auto i = next_++; i < sources_.size(); i = next_++) {
    try {
      static_cast<void>(context_.has_kernels(sources_[i], device_));
    } catch (...) {
      // The thread that needs the kernels tries again and gets the error.
    }
  }
}

}  // namespace autopar::devices
