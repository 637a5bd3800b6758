#include "trace.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/spans.hpp"

namespace train {

namespace {

/// A kernel or operator, and the nanoseconds outside the spans within it.
struct Timed {
  traces::Span span;
  std::uint64_t own;
};

std::vector<Timed> timed(const std::vector<traces::Span>& spans) {
  std::vector<Timed> all;
  for (const auto& span : spans) all.push_back({span, span.end - span.begin});
  return all;
}

/// On CPUs operators call one another: time counts where it is spent.
void take_off_inner(std::vector<Timed>& all) {
  std::map<std::uint64_t, std::vector<Timed*>> open;
  for (auto& each : all) {
    const auto& span = each.span;
    auto& stack = open[span.thread];
    while (!stack.empty() && stack.back()->span.end <= span.begin) stack.pop_back();
    if (!stack.empty()) stack.back()->own -= std::min(stack.back()->own, span.end - span.begin);
    stack.push_back(&each);
  }
}

/// Nanoseconds from the step's begin on the host until the first span begins.
std::uint64_t head(const traces::profiler::ProfilerResult& result, const std::vector<traces::Span>& all) {
  for (const auto& event : result.events()) {
    if (event.name() != traces::kStep || event.deviceType() != c10::DeviceType::CPU || all.empty()) continue;
    return all.front().begin > event.startNs() ? all.front().begin - event.startNs() : 0;
  }
  return 0;
}

/// Nanoseconds from the first begin to the last end, and of these without any span.
std::pair<std::uint64_t, std::uint64_t> length_and_idle(const std::vector<traces::Span>& all) {
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

}  // namespace

nlohmann::json traced(const std::function<void()>& step, c10::Device device) {
  const auto result = traces::recorded(step, device);
  const auto spans = traces::spans_of(*result, device.type());
  auto all = timed(spans);
  if (!device.is_cuda()) take_off_inner(all);
  std::map<std::string_view, Total> totals;
  std::map<std::string, Total> names;
  for (const auto& [span, own] : all) {
    for (auto* total : {&totals[traces::class_of(span.name)], &names[span.name.substr(0, 120)]}) {
      total->ns += own;
      ++total->launches;
    }
  }
  const auto [length, idle] = length_and_idle(spans);
  nlohmann::json out{{"span_ms", static_cast<double>(length) / 1e6}, {"idle_ms", static_cast<double>(idle) / 1e6}};
  if (device.is_cuda()) out["head_ms"] = static_cast<double>(head(*result, spans)) / 1e6;
  for (const auto& [name, total] : totals) out["classes"][std::string(name)] = total.json();
  std::vector<std::pair<std::string, Total>> longest(names.begin(), names.end());
  std::sort(longest.begin(), longest.end(), [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  constexpr std::size_t kShown = 40;
  longest.resize(std::min(longest.size(), kShown));
  for (const auto& [name, total] : longest) {
    auto line = total.json();
    line["name"] = name;
    out["top"].push_back(std::move(line));
  }
  return out;
}

}  // namespace train
