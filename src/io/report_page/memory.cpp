#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/plan/text.hpp>

#include "io/report_page/html.hpp"
#include "io/report_page/parts.hpp"

namespace autopar::report_page {

namespace {

constexpr std::size_t kMostCharts = 8, kMostSamples = 600;
constexpr std::array<std::string_view, kMemoryKinds> kMemoryColours{
    {"#44608a", "#7c9cc9", "#a9b8cf", "#e0a23c", "#b3658f", "#9aa1ab"}};

std::size_t index_of(MemoryKind kind) { return static_cast<std::size_t>(kind); }

/// As many as a chart has pixels for; of neighbours the fullest stays.
std::vector<MemorySample> thinned(const std::vector<MemorySample>& samples) {
  if (samples.size() <= kMostSamples) return samples;
  std::vector<MemorySample> out;
  const std::size_t each = (samples.size() + kMostSamples - 1) / kMostSamples;
  for (std::size_t i = 0; i < samples.size(); i += each) {
    const auto begin = samples.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end = samples.begin() + static_cast<std::ptrdiff_t>(std::min(samples.size(), i + each));
    MemorySample fullest =
        *std::max_element(begin, end, [](const auto& a, const auto& b) { return a.total() < b.total(); });
    fullest.from = begin->from;
    out.push_back(fullest);
  }
  return out;
}

/// A stack of steps: what is held of each kind, on top of the kinds before it.
class MemoryChart {
 public:
  MemoryChart(const RankMemoryOverStep& memory, Seconds step, Bytes available)
      : memory_(memory), samples_(thinned(memory.samples)), step_(step) {
    const Bytes most = std::max(memory.most(), memory.peak);
    shows_limit_ = available > Bytes(0) && most / available > 0.4;
    const double top = 1.12 * static_cast<double>((shows_limit_ ? std::max(most, available) : most).value());
    top_ = Bytes(std::max<std::int64_t>(1, static_cast<std::int64_t>(top)));
    available_ = available;
  }

  [[nodiscard]] std::string draw(const std::string& name) const {
    std::string out = "<div class=\"chart\"><h3>" + escaped(name) +
                      "</h3><div class=\"plot\">"
                      "<svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" role=\"img\"" +
                      attribute("aria-label", "memory of " + name + " by kind") + ">\n";
    for (std::size_t kind = kMemoryKinds; kind-- > 0;) out += area(kind);
    out += line(memory_.peak, "#b3261e") + (shows_limit_ ? line(available_, "#1d2430") : "") + "</svg>";
    out += label(memory_.peak, "peak " + readable(memory_.peak), "left:4px");
    if (shows_limit_) out += label(available_, "available " + readable(available_), "right:4px");
    return out + "</div><div class=\"ends\"><span>0</span><span>" + readable(step_) + "</span></div></div>\n";
  }

 private:
  [[nodiscard]] double y_of(Bytes bytes) const { return 1000 * (1 - bytes / top_); }
  /// From zero up to the top of this kind: kinds above are drawn before.
  [[nodiscard]] std::string area(std::size_t kind) const {
    std::string points = "0,1000";
    Bytes most{};
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      Bytes height{};
      for (std::size_t k = 0; k <= kind; ++k) height += samples_[i].held[k];
      most = std::max(most, samples_[i].held[kind]);
      const Seconds end = i + 1 < samples_.size() ? samples_[i + 1].from : step_;
      const std::string y = number(y_of(height));
      points +=
          " " + number(1000 * (samples_[i].from / step_)) + "," + y + " " + number(1000 * (end / step_)) + "," + y;
    }
    const std::string name(kEnumTexts<MemoryKind>[kind].text);
    return "<polygon class=\"area\" fill=\"" + std::string(kMemoryColours[kind]) + "\" points=\"" + points +
           " 1000,1000\"><title>" + escaped(name) + ", at most " + readable(most) + "</title></polygon>\n";
  }
  [[nodiscard]] std::string line(Bytes bytes, const char* colour) const {
    const std::string y = number(y_of(bytes));
    return "<line x1=\"0\" x2=\"1000\" y1=\"" + y + "\" y2=\"" + y + "\" stroke=\"" + colour +
           "\" stroke-dasharray=\"6 4\" vector-effect=\"non-scaling-stroke\"/>";
  }
  [[nodiscard]] std::string label(Bytes bytes, const std::string& text, const char* place) const {
    return "<span style=\"" + std::string(place) + ";top:calc(" + number(y_of(bytes) / 10) + "% - 9px)\">" +
           escaped(text) + "</span>";
  }

  const RankMemoryOverStep& memory_;
  std::vector<MemorySample> samples_;
  Seconds step_;
  Bytes top_{1}, available_{};
  bool shows_limit_ = false;
};

}  // namespace

std::string memory_of(const RunReport& report) {
  if (report.memory.empty() || !(report.timeline.step > Seconds{}))
    return remark("Not known here: what the step holds follows from its timeline.");
  std::string body =
      "<p>What one rank of each group holds, from the step's begin to its end; of a stage's replicas the fullest.</p>\n"
      "<div class=\"legend\">";
  for (std::size_t kind = 0; kind < kMemoryKinds; ++kind)
    body += legend_entry(kMemoryColours[kind], kEnumTexts<MemoryKind>[kind].text);
  body += "</div>\n<div class=\"charts\">\n";
  std::vector<Column> columns{{"rank"}};
  for (const auto& kind : kEnumTexts<MemoryKind>) columns.push_back({kind.text, true});
  columns.push_back({"peak as planned", true});
  std::vector<std::vector<std::string>> rows;
  for (const RankMemoryOverStep& memory : report.memory) {
    if (memory.samples.empty()) continue;
    if (rows.size() == kMostCharts) break;
    const std::string name =
        "rank " + std::to_string(memory.rank.value()) + ", " + stages_text(report.timeline.stages[memory.rank.index()]);
    body += MemoryChart(memory, report.timeline.step, report.plan.device_memory).draw(name);
    const auto fullest = std::ranges::max_element(memory.samples, {}, &MemorySample::total);
    rows.push_back({escaped(name)});
    for (const auto& kind : kEnumTexts<MemoryKind>)
      rows.back().push_back(readable(fullest->held[index_of(kind.value)]));
    rows.back().push_back(readable(memory.peak));
  }
  body += "</div>\n<h3>At the fullest moment</h3>\n" + table(columns, rows);
  if (report.memory.size() > rows.size())
    body += remark("The " + std::to_string(rows.size()) + " fullest of " + std::to_string(report.memory.size()) +
                   " groups of ranks are shown.");
  if (report.plan.host_memory > Bytes(0)) body += remark("Host memory, for what is offloaded, is not in these charts.");
  return body;
}

}  // namespace autopar::report_page
