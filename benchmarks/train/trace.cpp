#include "trace.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

namespace train {

namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

constexpr const char* kStep = "step of the benchmark";

struct Class {
  std::string_view name;
  std::vector<std::string_view> words;
};

/// The first class with a word that the lower-case name of a kernel or operator contains. What a kernel works for comes
/// before what it is made of: a norm's reduction is a norm.
const std::vector<Class>& classes() {
  static const std::vector<Class> all{
      {"attention", {"flash", "fmha", "sdpa", "attention"}},
      {"optimizer", {"adam", "multi_tensor", "foreach", "fused_sgd", "addcdiv"}},
      {"loss", {"softmax", "nll", "mse", "cross_entropy"}},
      {"copies",
       {"nchwtonhwc", "nhwctonchw", "copy", "memcpy", "memset", "fill", "zero_", "catarray", "::cat", "::clone"}},
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

std::string_view class_of(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& one : classes()) {
    const auto in_name = [&](std::string_view word) { return name.find(word) != std::string::npos; };
    if (std::any_of(one.words.begin(), one.words.end(), in_name)) return one.name;
  }
  return "other";
}

struct Span {
  std::uint64_t begin, end;
  std::uint64_t thread;
  std::string name;
  std::uint64_t own;  ///< nanoseconds outside the spans within this one
};

std::vector<Span> spans(const profiler::ProfilerResult& result, c10::Device device) {
  std::vector<Span> all;
  for (const auto& event : result.events()) {
    const bool of_device = event.deviceType() == c10::DeviceType::CUDA;
    if (of_device != device.is_cuda() || event.endNs() <= event.startNs()) continue;
    all.push_back(
        {event.startNs(), event.endNs(), of_device ? 0 : event.startThreadId(), event.name(), event.durationNs()});
  }
  std::sort(all.begin(), all.end(), [](const Span& a, const Span& b) {
    return std::pair(a.begin, b.end) < std::pair(b.begin, a.end);  // what contains another comes first
  });
  return all;
}

/// On CPUs operators call one another: time counts where it is spent.
void take_off_inner(std::vector<Span>& all) {
  std::map<std::uint64_t, std::vector<Span*>> open;
  for (auto& span : all) {
    auto& stack = open[span.thread];
    while (!stack.empty() && stack.back()->end <= span.begin) stack.pop_back();
    if (!stack.empty()) stack.back()->own -= std::min(stack.back()->own, span.end - span.begin);
    stack.push_back(&span);
  }
}

/// Nanoseconds from the step's begin on the host until the first span begins.
std::uint64_t head(const profiler::ProfilerResult& result, const std::vector<Span>& all) {
  for (const auto& event : result.events()) {
    if (event.name() != kStep || event.deviceType() != c10::DeviceType::CPU || all.empty()) continue;
    return all.front().begin > event.startNs() ? all.front().begin - event.startNs() : 0;
  }
  return 0;
}

/// Nanoseconds from the first begin to the last end, and of these without any span.
std::pair<std::uint64_t, std::uint64_t> length_and_idle(const std::vector<Span>& all) {
  if (all.empty()) return {0, 0};
  std::uint64_t idle = 0, end = all.front().begin;
  for (const auto& span : all) {
    if (span.begin > end) idle += span.begin - end;
    end = std::max(end, span.end);
  }
  return {end - all.front().begin, idle};
}

struct Total {
  std::uint64_t ns = 0;
  std::int64_t launches = 0;

  [[nodiscard]] nlohmann::json json() const { return {{"ms", static_cast<double>(ns) / 1e6}, {"launches", launches}}; }
};

std::unique_ptr<profiler::ProfilerResult> profiled(const std::function<void()>& step, c10::Device device) {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
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

}  // namespace

nlohmann::json traced(const std::function<void()>& step, c10::Device device) {
  const auto result = profiled(step, device);
  auto all = spans(*result, device);
  if (!device.is_cuda()) take_off_inner(all);
  std::map<std::string_view, Total> totals;
  std::map<std::string, Total> names;
  for (const auto& span : all) {
    for (auto* total : {&totals[class_of(span.name)], &names[span.name.substr(0, 120)]}) {
      total->ns += span.own;
      ++total->launches;
    }
  }
  const auto [length, idle] = length_and_idle(all);
  nlohmann::json out{{"span_ms", static_cast<double>(length) / 1e6}, {"idle_ms", static_cast<double>(idle) / 1e6}};
  if (device.is_cuda()) out["head_ms"] = static_cast<double>(head(*result, all)) / 1e6;
  for (const auto& [name, total] : totals) out["classes"][std::string(name)] = total.json();
  std::vector<std::pair<std::string, Total>> longest(names.begin(), names.end());
  std::sort(longest.begin(), longest.end(), [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  constexpr std::size_t kShown = 12;
  longest.resize(std::min(longest.size(), kShown));
  for (const auto& [name, total] : longest) {
    auto line = total.json();
    line["name"] = name;
    out["top"].push_back(std::move(line));
  }
  return out;
}

}  // namespace train
