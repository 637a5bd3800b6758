#pragma once

#include <functional>

#include <c10/core/Device.h>
#include <nlohmann/json.hpp>

namespace train {

/// Runs `step` under libtorch's own profiler and adds up what ran, by class: GEMM, convolution, attention, optimizer,
/// copies, point-wise, norm, reduce, loss, other. On CUDA devices of kernels, on CPUs of operators without those that
/// they call. Each class has `ms` and `launches`; `idle_ms` of `span_ms` nothing ran. `top` names the twelve that took
/// longest.
/// @param step  waits for the device before it returns
[[nodiscard]] nlohmann::json traced(const std::function<void()>& step, c10::Device device);

}  // namespace train
