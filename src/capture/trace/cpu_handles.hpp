#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace autopar::trace {

/// While it lives, a module's parameters and buffers on other devices are fake CPU tensors of the same form, without
/// gradients. So all tensors of a capture are CPU tensors, before and after the module is deployed. Code that asks for
/// a tensor's device gets one answer: autocast kernels, which skip tensors of other devices, and the model's code.
/// Handles that share memory still share it.
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

}  // namespace autopar::trace
