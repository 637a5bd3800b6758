#include "torch/device/device_context.hpp"

namespace autopar::devices {

const DeviceContext* cuda_context() { return nullptr; }

}  // namespace autopar::devices
