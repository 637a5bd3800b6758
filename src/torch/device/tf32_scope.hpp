#pragma once

#include <array>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/Device.h>

namespace autopar::devices {

/// While it lives, float32 products and convolutions on CUDA devices may round their factors to TF32. Afterwards the
/// process's settings are restored. Does nothing on CPUs, which have no TF32.
class Tf32Scope {
 public:
  Tf32Scope(bool wanted, c10::Device device) {
    if (!wanted || !device.is_cuda()) return;
    auto& context = at::globalContext();
    for (auto& [op, before] : settings_) {
      before = context.float32Precision(at::Float32Backend::CUDA, op);
      context.setFloat32Precision(at::Float32Backend::CUDA, op, at::Float32Precision::TF32);
    }
    changed_ = true;
  }
  ~Tf32Scope() {
    if (!changed_) return;
    for (const auto& [op, before] : settings_) {
      at::globalContext().setFloat32Precision(at::Float32Backend::CUDA, op, before);
    }
  }
  Tf32Scope(const Tf32Scope&) = delete;
  Tf32Scope& operator=(const Tf32Scope&) = delete;

 private:
  std::array<std::pair<at::Float32Op, at::Float32Precision>, 3> settings_{
      {{at::Float32Op::MATMUL, at::Float32Precision::NONE},
       {at::Float32Op::CONV, at::Float32Precision::NONE},
       {at::Float32Op::RNN, at::Float32Precision::NONE}}};
  bool changed_ = false;
};

}  // namespace autopar::devices
