#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace autopar::detail {

/// While it lives, a module's parameters and buffers on other devices than the CPU are phantoms of their form, which
/// are on the CPU, without gradients. Then all tensors of a capture are CPU tensors, before the module is deployed and
/// after: what asks for a tensor's device (autocast kernels, which pass other devices' tensors by, and the model's own
/// code) gets one answer. Handles that share memory go on sharing it.
class CpuHandles {
 public:
  explicit CpuHandles(const torch::nn::Module& module);
  ~CpuHandles();
  CpuHandles(const CpuHandles&) = delete;
  CpuHandles& operator=(const CpuHandles&) = delete;

 private:
  struct Kept {
    at::Tensor handle, data, gradient;
  };
  std::vector<Kept> kept_;
};

}  // namespace autopar::detail
