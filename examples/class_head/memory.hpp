#pragma once

#include <cstdint>

#include <torch/types.h>

/// Most memory held since it was made, beyond what was held then: of the device, or, on CPUs, of the process as Linux
/// counts it (VmHWM).
class PeakMemory {
 public:
  explicit PeakMemory(torch::Device device);
  [[nodiscard]] int64_t bytes() const;

 private:
  torch::Device device_;
  int64_t before_ = 0;
};
