#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "traces/spans.hpp"

/// Passes over memory that compute nothing, of a step that was recorded: copies, casts, fills.
namespace gpu_copies {

namespace profiler = traces::profiler;

/// A tensor that an operator was called with.
struct Given {
  std::vector<std::int64_t> sizes;
  std::string type;  ///< as C++ has it: float, c10::BFloat16

  [[nodiscard]] bool is_half() const { return type == "c10::BFloat16" || type == "c10::Half"; }
  [[nodiscard]] std::int64_t elements() const { return c10::multiply_integers(sizes); }
  [[nodiscard]] std::int64_t bytes() const {
    const bool is_eight = type == "double" || type == "long" || type == "long int";
    return elements() * (is_half() ? 2 : is_eight ? 8 : type == "bool" ? 1 : 4);
  }
};

/// A kernel of the class `copies`, or on CPUs an operator.
struct Pass {
  std::string kernel;
  std::string operators;     ///< that led to it, "outer > inner"
  std::vector<Given> given;  ///< of the innermost operator: the result first
  std::int64_t bytes = -1;   ///< that it writes; -1 = nobody knows
  std::string grid;
  double microseconds = 0;

  [[nodiscard]] bool is_in(std::string_view name) const { return operators.find(name) != operators.npos; }
  [[nodiscard]] bool is_fill() const {
    return is_in("aten::fill_") || is_in("aten::zero_") || kernel.find("Fill") != kernel.npos ||
           kernel.find("Memset") != kernel.npos;
  }
  /// Whether a program, the library or a node of autograd asked for it, and not an operator that works on something.
  [[nodiscard]] bool is_by_itself() const {
    std::string_view rest = operators;
    while (rest.starts_with("autograd::engine::evaluate_function") ||
           rest.substr(0, rest.find(" > ")).find("aten::") == rest.npos) {
      const auto end = rest.find(" > ");
      if (end == rest.npos) return false;
      rest.remove_prefix(end + 3);
    }
    constexpr std::array<std::string_view, 9> kPasses{"aten::copy_", "aten::to",         "aten::fill_",
                                                      "aten::zero_", "aten::zeros",      "aten::zeros_like",
                                                      "aten::clone", "aten::contiguous", "aten::_foreach_copy_"};
    return std::ranges::find(kPasses, rest.substr(0, rest.find(" > "))) != kPasses.end();
  }
  [[nodiscard]] std::string describe() const {
    std::ostringstream out;
    out << kernel.substr(0, 100) << " | " << operators << " |";
    for (const auto& each : given) out << ' ' << each.type << c10::IntArrayRef(each.sizes);
    if (bytes >= 0) out << ", " << bytes << " bytes";
    if (!grid.empty()) out << ", grid " << grid;
    return out.str();
  }
};

namespace detail {

/// What a kernel's record has beside its name: `"grid": [4, 1, 1], "bytes": 64`.
inline std::string from_metadata(const std::string& json, const std::string& key) {
  const auto at = json.find('"' + key + "\":");
  if (at == json.npos) return "";
  const auto begin = json.find_first_not_of(' ', at + key.size() + 3);
  const auto end = json[begin] == '[' ? json.find(']', begin) + 1 : json.find_first_of(",}", begin);
  return json.substr(begin, end - begin);
}

/// Operators that ran on CPU threads, as they call one another.
class Operators {
 public:
  explicit Operators(const profiler::ProfilerResult& result) {
    constexpr std::uint8_t kOperator = 0;  // libkineto::ActivityType::CPU_OP
    for (const auto& span : traces::spans_of(result, c10::DeviceType::CPU)) {
      if (span.event->activityType() == kOperator) spans_.push_back(span);
    }
    std::map<std::uint64_t, std::vector<std::size_t>> open;
    outer_.resize(spans_.size(), kNone);
    has_inner_.resize(spans_.size(), false);
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      auto& stack = open[spans_[i].thread];
      while (!stack.empty() && spans_[stack.back()].end <= spans_[i].begin) stack.pop_back();
      if (!stack.empty()) {
        outer_[i] = stack.back();
        has_inner_[stack.back()] = true;
      }
      stack.push_back(i);
      by_correlation_[spans_[i].event->correlationId()] = i;
    }
  }

  [[nodiscard]] std::size_t size() const { return spans_.size(); }
  [[nodiscard]] const traces::Span& span(std::size_t i) const { return spans_[i]; }
  [[nodiscard]] bool has_inner(std::size_t i) const { return has_inner_[i]; }
  /// kNone where a kernel is not linked to one.
  [[nodiscard]] std::size_t that_launched(const profiler::KinetoEvent& kernel) const {
    const auto found = by_correlation_.find(kernel.linkedCorrelationId());
    return kernel.linkedCorrelationId() == 0 || found == by_correlation_.end() ? kNone : found->second;
  }
  [[nodiscard]] std::string path(std::size_t i) const {
    std::string path;
    for (; i != kNone && spans_[i].name != traces::kStep; i = outer_[i])
      path = path.empty() ? spans_[i].name : spans_[i].name + " > " + path;
    return path;
  }
  [[nodiscard]] std::vector<Given> given(std::size_t i) const {
    std::vector<Given> all;
    const auto shapes = spans_[i].event->shapes();
    const auto types = spans_[i].event->dtypes();
    for (std::size_t k = 0; k < std::min(shapes.size(), types.size()); ++k) {
      if (types[k].find("Scalar") == std::string::npos && !types[k].empty()) all.push_back({shapes[k], types[k]});
    }
    return all;
  }

  static constexpr std::size_t kNone = ~std::size_t{0};

 private:
  std::vector<traces::Span> spans_;
  std::vector<std::size_t> outer_;
  std::vector<bool> has_inner_;
  std::map<std::uint64_t, std::size_t> by_correlation_;
};

inline Pass pass_of(const traces::Span& span, const Operators& operators, std::size_t launcher) {
  Pass pass;
  pass.kernel = span.name;
  pass.microseconds = static_cast<double>(span.end - span.begin) / 1e3;
  const auto metadata = span.event->metadataJson();
  pass.grid = from_metadata(metadata, "grid");
  if (const auto bytes = from_metadata(metadata, "bytes"); !bytes.empty()) pass.bytes = std::stoll(bytes);
  if (launcher == Operators::kNone) return pass;
  pass.operators = operators.path(launcher);
  pass.given = operators.given(launcher);
  const auto& innermost = operators.span(launcher).name;
  if (pass.bytes < 0 && !pass.given.empty() && innermost.starts_with("aten::")) pass.bytes = pass.given[0].bytes();
  return pass;
}

/// Kernels for lists of tensors are of the class `optimizer`, whatever they do.
inline bool computes_nothing(const std::string& kernel) {
  const auto has = [&](std::string_view word) { return kernel.find(word) != kernel.npos; };
  return traces::class_of(kernel) == "copies" || (has("multi_tensor") && (has("Copy") || has("ZeroFunctor")));
}

}  // namespace detail

/// @param result  recorded with sizes
inline std::vector<Pass> passes_of(const profiler::ProfilerResult& result, c10::Device device) {
  const detail::Operators operators(result);
  std::vector<Pass> all;
  if (device.is_cuda()) {
    for (const auto& span : traces::spans_of(result, c10::DeviceType::CUDA)) {
      if (detail::computes_nothing(span.name))
        all.push_back(detail::pass_of(span, operators, operators.that_launched(*span.event)));
    }
    return all;
  }
  for (std::size_t i = 0; i < operators.size(); ++i) {
    const auto& name = operators.span(i).name;
    const bool writes = name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_";
    if (writes && !operators.has_inner(i)) all.push_back(detail::pass_of(operators.span(i), operators, i));
  }
  return all;
}

/// A line for each kind, with the number of passes and their time.
inline std::string listed(const std::vector<Pass>& passes) {
  std::map<std::string, std::pair<int, double>> kinds;
  for (const auto& pass : passes) {
    auto& [count, microseconds] = kinds[pass.describe()];
    ++count;
    microseconds += pass.microseconds;
  }
  std::ostringstream out;
  for (const auto& [kind, total] : kinds) out << "\n  " << total.first << " x, " << total.second << " us: " << kind;
  return out.str();
}

}  // namespace gpu_copies
