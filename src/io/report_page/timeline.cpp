#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include <autopar/plan/text.hpp>

#include "io/report_page/html.hpp"
#include "io/report_page/parts.hpp"

namespace autopar::report_page {

namespace {

constexpr int kAxis = 26, kCompute = 18, kWires = 7, kLane = 32, kGap = 10;  // pixels
constexpr std::size_t kMostBars = 40'000, kMostRanks = 64;                   // that a browser shows at once
constexpr int kZooms[] = {1, 4, 16, 64};

struct BarLook {
  BarKind kind;
  std::string_view colour, word;
};
constexpr std::array<BarLook, 8> kBarLooks{{{BarKind::kForward, "#3b7dd8", "forward"},
                                            {BarKind::kBackward, "#23875d", "backward"},
                                            {BarKind::kBackwardInput, "#1b7385", "backward, inputs"},
                                            {BarKind::kBackwardWeight, "#6d9a4f", "backward, parameters"},
                                            {BarKind::kSend, "#d9822b", "send"},
                                            {BarKind::kReceive, "#b3a11f", "receive"},
                                            {BarKind::kCollective, "#a64fb8", "gradient sums and gathers"},
                                            {BarKind::kUpdate, "#767d88", "optimizer's update"}}};

const BarLook& look_of(BarKind kind) { return *std::ranges::find(kBarLooks, kind, &BarLook::kind); }

/// 1, 2 or 5 times a power of ten, so that a step has about `count` ticks.
double tick_of(double seconds, double count) {
  const double power = std::pow(10, std::floor(std::log10(seconds / count)));
  const double ratio = seconds / count / power;
  return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

/// The lanes of some ranks: of each what was predicted, and below it what was measured, if anything was.
class Lanes {
 public:
  explicit Lanes(const RunReport& report) : report_(report), end_(report.timeline.step) {
    if (!report.measured) return;
    for (const Bar& bar : report.measured->bars) {
      measured_.insert(bar.rank.index());
      if (std::isfinite(bar.end.value())) end_ = std::max(end_, bar.end);
    }
  }

  /// Ranks of different stages first, until there are enough bars.
  void choose_ranks() {
    std::vector<std::size_t> bars(report_.timeline.busy.size()), order;
    for (const Bar& bar : report_.timeline.bars) ++bars[bar.rank.index()];
    if (report_.measured) {
      for (const Bar& bar : report_.measured->bars) {
        if (bar.rank.index() < bars.size()) ++bars[bar.rank.index()];
      }
    }
    std::set<std::vector<int>> met;
    std::vector<std::size_t> later;
    for (std::size_t r = 0; r < bars.size(); ++r)
      (measured_.contains(r) || met.insert(report_.timeline.stages[r]).second ? order : later).push_back(r);
    order.insert(order.end(), later.begin(), later.end());
    std::size_t drawn = 0;
    for (const std::size_t r : order) {
      if (ranks_.size() == kMostRanks || drawn + bars[r] > kMostBars) continue;
      drawn += bars[r];
      ranks_.push_back(r);
    }
    std::ranges::sort(ranks_);
  }

  [[nodiscard]] std::size_t shown() const { return ranks_.size(); }

  [[nodiscard]] std::string labels() const {
    std::string out = "<div class=\"who\"><div style=\"height:" + std::to_string(kAxis) + "px\"></div>";
    for (const std::size_t r : ranks_) {
      const Rank rank = Rank::of(r);
      out += "<div style=\"height:" + std::to_string(height_of(r)) + "px\">rank " + std::to_string(r) + ", " +
             escaped(stages_text(report_.timeline.stages[r])) + "<small>waits " +
             percent(report_.timeline.waiting(rank)) + "</small>";
      if (measured_.contains(r)) out += "<small class=\"measured\">below: measured</small>";
      out += "</div>";
    }
    return out + "</div>";
  }

  [[nodiscard]] std::string drawing() const {
    int height = kAxis;
    for (const std::size_t r : ranks_) height += height_of(r);
    std::string out = "<div class=\"scroll\"><svg height=\"" + std::to_string(height) +
                      "\" role=\"img\" aria-label=\"timeline of a step\">\n";
    int y = kAxis;
    for (const std::size_t r : ranks_) {
      if (measured_.contains(r))
        out += "<rect class=\"band\" x=\"0\" width=\"100%\" y=\"" + std::to_string(y + kLane) + "\" height=\"" +
               std::to_string(kLane) + "\" fill=\"#eef1f5\"/>";
      y += height_of(r);
    }
    add_axis(out, height);
    y = kAxis;
    for (const std::size_t r : ranks_) {
      out += "<g class=\"lane predicted\">";
      add_bars(out, report_.timeline.bars, r, y + kGap / 2);
      out += "</g>\n";
      if (measured_.contains(r)) {
        out += "<g class=\"lane measured\">";
        add_bars(out, report_.measured->bars, r, y + kLane + kGap / 2);
        out += "</g>\n";
      }
      y += height_of(r);
    }
    return out + "</svg></div>";
  }

 private:
  [[nodiscard]] int height_of(std::size_t rank) const {
    return measured_.contains(rank) ? 2 * kLane + kGap : kLane + 6;
  }
  void add_axis(std::string& out, int height) const {
    double last = 0;
    for (const int zoom : kZooms) {
      const double tick = tick_of(end_.value(), 7.0 * zoom);
      if (tick == last) continue;
      for (int i = 0; i * tick <= end_.value() * (1 - 0.1 / zoom); ++i) {
        if (last > 0 && std::abs(std::remainder(i * tick, last)) < tick / 4) continue;  // a coarser tick is there
        const std::string x = share(i * tick / end_.value());
        const std::string level = zoom == 1 ? "" : " class=\"x" + std::to_string(zoom) + "\"";
        out += "<g" + level + "><line class=\"axis\" x1=\"" + x + "\" x2=\"" + x + "\" y1=\"18\" y2=\"" +
               std::to_string(height) + "\"/><text x=\"" + x + "\" y=\"13\" dx=\"2\">" + readable(Seconds(i * tick)) +
               "</text></g>";
      }
      last = tick;
    }
    out += "\n";
  }

  void add_bars(std::string& out, const std::vector<Bar>& bars, std::size_t rank, int top) const {
    for (const Bar& bar : bars) {
      if (bar.rank.index() != rank || bar.end <= bar.begin) continue;
      const bool is_computed = computes(bar.kind);
      const int y = is_computed ? top : top + kCompute + 1;
      const double begin = bar.begin / end_, width = (bar.end - bar.begin) / end_;
      out += "<rect class=\"bar " + name_of(bar.kind) + "\" x=\"" + share(begin) + "\" width=\"" + share(width) +
             "\" y=\"" + std::to_string(y) + "\" height=\"" + std::to_string(is_computed ? kCompute : kWires) +
             "\" fill=\"" + std::string(look_of(bar.kind).colour) + "\"><title>" + escaped(bar.what) + "\n" +
             readable(bar.begin) + " to " + readable(bar.end) + ", " + readable(bar.end - bar.begin) +
             "</title></rect>";
      if (is_computed && bar.microbatch >= 0) add_number(out, bar.microbatch, begin + width / 2, width, y);
    }
  }
  /// From the zoom on at which there is room for it.
  static void add_number(std::string& out, int microbatch, double middle, double width, int y) {
    const std::string text = std::to_string(microbatch);
    const double needed = 0.008 + 0.011 * static_cast<double>(text.size());
    for (const int zoom : kZooms) {
      if (width * zoom < needed) continue;
      out += "<text class=\"num" + (zoom == 1 ? "" : " x" + std::to_string(zoom)) + "\" x=\"" + share(middle) +
             "\" y=\"" + std::to_string(y + 13) + "\">" + text + "</text>";
      return;
    }
  }

  const RunReport& report_;
  Seconds end_;
  std::set<std::size_t> measured_;  // ranks
  std::vector<std::size_t> ranks_;  // that are shown
};

std::string zoom_buttons() {
  std::string inputs, labels;
  for (const int zoom : kZooms) {
    const std::string id = "zoom" + std::to_string(zoom);
    inputs += "<input type=\"radio\" name=\"zoom\" id=\"" + id + "\"" + (zoom == 1 ? " checked" : "") + ">";
    labels += "<label for=\"" + id + "\">" + std::to_string(zoom) + " \xC3\x97</label>";
  }
  return inputs + "<div class=\"zoom\">zoom " + labels +
         "<span class=\"sub\">Ctrl and wheel zoom, dragging moves; resting on a bar tells what it is</span></div>";
}

}  // namespace

std::string timeline_of(const RunReport& report) {
  if (!(report.timeline.step > Seconds{})) return remark("No timeline: what the step takes is not known here.");
  std::string body = "<p>One step is predicted to take " + readable(report.timeline.step) +
                     ". A rank has two lanes: what it computes, with the number of the micro-batch, and below it what "
                     "travels meanwhile.</p>\n";
  if (report.measured && report.measured->bars.empty())
    body += remark("No measured actions: too few steps, or a GPU, whose actions only trace_file sees.");
  std::set<BarKind> kinds;
  for (const Bar& bar : report.timeline.bars) kinds.insert(bar.kind);
  if (report.measured) {
    for (const Bar& bar : report.measured->bars) kinds.insert(bar.kind);
  }
  body += "<div class=\"legend\">";
  for (const BarLook& look : kBarLooks) {
    if (kinds.contains(look.kind)) body += legend_entry(look.colour, look.word);
  }
  body += "</div>\n";
  Lanes lanes(report);
  lanes.choose_ranks();
  if (lanes.shown() == 0)
    return body + remark("Its ranks have more bars than a browser shows; 'autopar simulate --trace' writes them all.");
  const std::size_t all = report.timeline.busy.size();
  if (lanes.shown() < all)
    body += remark(std::to_string(lanes.shown()) + " of " + std::to_string(all) +
                   " ranks are shown, of different stages first; 'autopar simulate --trace' writes all.");
  return body + "<div class=\"tl\">" + zoom_buttons() + "<div class=\"lanes\">" + lanes.labels() + lanes.drawing() +
         "</div></div>\n";
}

}  // namespace autopar::report_page
