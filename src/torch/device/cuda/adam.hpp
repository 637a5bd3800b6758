#pragma once

#include "torch/device/adam_update.hpp"

namespace autopar {

/// See `DeviceContext::step_adam`. @pre on CUDA devices
[[nodiscard]] bool step_adam_on_device(const AdamUpdate& update);

}  // namespace autopar
