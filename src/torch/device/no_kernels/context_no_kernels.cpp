#include "torch/device/cuda/cuda_context.hpp"

namespace autopar::devices {

const DeviceContext* cuda_context() {
  static const CudaContext cuda;
  return &cuda;
}

}  // namespace autopar::devices
