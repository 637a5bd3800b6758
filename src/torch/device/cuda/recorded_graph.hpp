#pragma once

#include <functional>
#include <memory>

#include <c10/core/Stream.h>

#include "torch/device/device_recording.hpp"

namespace autopar::devices {

/// See DeviceContext::record: a CUDA graph, and a pool of libtorch's allocator for its memory.
[[nodiscard]] std::unique_ptr<DeviceRecording> record_graph(c10::Stream stream, const std::function<void()>& work,
                                                            const DeviceRecording* beside);

}  // namespace autopar::devices
