#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <torch/csrc/autograd/profiler_kineto.h>

/// What libtorch's own profiler records of a step: the kernels of a device, or on CPUs the operators.
namespace traces {

namespace profiler = torch::autograd::profiler;

inline constexpr const char* kStep = "step of the trace";

struct Span {
  std::uint64_t begin, end;
  std::uint64_t thread;  ///< 0 of devices
  std::string name;
  const profiler::KinetoEvent* event;  ///< of the result that it is from
};

/// Runs `step` under the profiler. @param step  waits for the device before it returns
inline std::unique_ptr<profiler::ProfilerResult> recorded(const std::function<void()>& step, c10::Device device,
                                                          bool with_sizes = false) {
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO, with_sizes);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  {
    RECORD_FUNCTION(kStep, std::vector<c10::IValue>{});
    step();
  }
  return profiler::disableProfiler();
}

/// Those of CUDA devices, or of CPUs, by their begin; what contains another comes first.
inline std::vector<Span> spans_of(const profiler::ProfilerResult& result, c10::DeviceType device) {
  std::vector<Span> all;
  const bool of_device = device == c10::DeviceType::CUDA;
  for (const auto& event : result.events()) {
    if ((event.deviceType() == c10::DeviceType::CUDA) != of_device || event.endNs() <= event.startNs()) continue;
    all.push_back({event.startNs(), event.endNs(), of_device ? 0 : event.startThreadId(), event.name(), &event});
  }
  std::sort(all.begin(), all.end(),
            [](const Span& a, const Span& b) { return std::pair(a.begin, b.end) < std::pair(b.begin, a.end); });
  return all;
}

namespace detail {

struct Class {
  std::string_view name;
  std::vector<std::string_view> words;
};

/// The first class with a word that the lower-case name of a kernel or operator contains. What a kernel works for comes
/// before what it is made of: a norm's reduction is a norm.
inline const std::vector<Class>& classes() {
  static const std::vector<Class> all{
      {"attention", {"flash", "fmha", "sdpa", "attention"}},
      {"optimizer", {"adam", "multi_tensor", "foreach", "fused_sgd", "addcdiv"}},
      {"copies",
       {"nchwtonhwc", "nhwctonchw", "copy", "memcpy", "memset", "fill", "zero_", "catarray", "::cat", "::clone"}},
      {"loss", {"softmax", "nll", "mse", "cross_entropy"}},
      {"norm", {"norm", "bn_fw", "bn_bw", "gammabeta"}},
      {"convolution", {"conv", "fprop", "dgrad", "wgrad", "im2col", "col2im"}},
      {"gemm",
       {"gemm", "nvjet", "cutlass", "cublas", "splitk", "::mm", "::addmm", "::bmm", "::baddbmm", "::linear",
        "::matmul"}},
      {"reduce", {"reduce", "::sum", "::mean"}},
      {"point-wise",
       {"elementwise", "dropout", "::add", "::sub", "::mul", "::div", "::relu", "::gelu", "::threshold", "bernoulli"}},
  };
  return all;
}

}  // namespace detail

/// GEMM, convolution, attention, optimizer, copies, point-wise, norm, reduce, loss, other.
inline std::string_view class_of(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& one : detail::classes()) {
    const auto in_name = [&](std::string_view word) { return name.find(word) != std::string::npos; };
    if (std::any_of(one.words.begin(), one.words.end(), in_name)) return one.name;
  }
  return "other";
}

}  // namespace traces
