#include "html.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/plan/text.hpp>

namespace autopar::tool {

namespace {

constexpr double kLeft = 150, kWidth = 1150, kTop = 64, kRow = 34, kComputeHeight = 18, kWireHeight = 9;
constexpr double kNumberWidth = 18;         // of a bar that shows its micro-batch
constexpr std::size_t kMostBars = 400'000;  // what a browser still shows

struct Look {
  BarKind kind;
  const char* colour;
};
constexpr std::array<Look, 8> kLooks{{{BarKind::kForward, "#4c8bd6"},
                                      {BarKind::kBackward, "#2f9e6e"},
                                      {BarKind::kBackwardInput, "#1f7a8c"},
                                      {BarKind::kBackwardWeight, "#7fb069"},
                                      {BarKind::kSend, "#e0a030"},
                                      {BarKind::kReceive, "#c9c24a"},
                                      {BarKind::kCollective, "#b45fc4"},
                                      {BarKind::kUpdate, "#8a8f98"}}};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable_line(text)) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string number(double value) { return detail::formatted("%.2f", value); }

/// 1, 2 or 5 times a power of ten, so that a step has about ten ticks.
double tick_of(double seconds) {
  const double power = std::pow(10, std::floor(std::log10(seconds / 10)));
  const double ratio = seconds / 10 / power;
  return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

class Page {
 public:
  Page(const StepTimeline& timeline, const std::string& title, const std::string& mark) : timeline_(timeline) {
    const double rows = static_cast<double>(timeline.busy.size());
    bottom_ = kTop + kRow * rows;
    const std::string height = number(bottom_ + 40), width = number(kLeft + kWidth + 90);
    text_ =
        "<!doctype html>\n<!-- " + mark + " -->\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" +
        escaped(title) +
        "</title>\n<style>body{font:13px sans-serif;margin:16px;color:#222;background:#fff}"
        "text{font:12px sans-serif;fill:#222}.axis{stroke:#bbb;stroke-width:.5}.tick,.share{font-size:11px;fill:#555}"
        "rect{stroke:#fff;stroke-width:.4}rect:hover{stroke:#000;stroke-width:1.5}"
        ".number{fill:#fff;font-size:10px;pointer-events:none}";
    for (const Look& look : kLooks) text_ += "." + name_of(look.kind) + "{fill:" + look.colour + "}";
    text_ += "</style></head><body>\n<h1 style=\"font-size:16px\">" + escaped(title) + "</h1>\n<svg width=\"" + width +
             "\" height=\"" + height + "\" viewBox=\"0 0 " + width + " " + height + "\">\n";
  }

  [[nodiscard]] std::string make() && {
    add_legend();
    add_axis();
    for (std::size_t r = 0; r < timeline_.busy.size(); ++r) add_labels(Rank::of(r));
    for (const Bar& bar : timeline_.bars) add_bar(bar);
    text_ += "</svg>\n</body></html>\n";
    return std::move(text_);
  }

 private:
  [[nodiscard]] double x_of(Seconds time) const { return kLeft + kWidth * (time / timeline_.step); }
  [[nodiscard]] static double y_of(Rank rank) { return kTop + kRow * rank.value(); }

  void add_legend() {
    double x = kLeft;
    for (const Look& look : kLooks) {
      text_ += "<g><rect class=\"" + name_of(look.kind) + " legend\" x=\"" + number(x) +
               "\" y=\"8\" width=\"12\" height=\"12\"/><text x=\"" + number(x + 17) + "\" y=\"18\">" +
               name_of(look.kind) + "</text></g>\n";
      x += 125;
    }
    text_ +=
        "<text x=\"" + number(kLeft + kWidth + 8) + "\" y=\"" + number(kTop - 8) + "\" class=\"share\">waits</text>\n";
  }

  void add_axis() {
    const double tick = tick_of(timeline_.step.value());
    for (int i = 0; i * tick <= timeline_.step.value() * (1 + 1e-9); ++i) {
      const Seconds time(std::min(i * tick, timeline_.step.value()));
      const std::string x = number(x_of(time));
      text_ += "<line class=\"axis\" x1=\"" + x + "\" x2=\"" + x + "\" y1=\"" + number(kTop - 4) + "\" y2=\"" +
               number(bottom_ + 4) + "\"/>";
      for (const double y : {kTop - 8, bottom_ + 18}) {
        text_ += "<text class=\"tick\" text-anchor=\"middle\" x=\"" + x + "\" y=\"" + number(y) + "\">" +
                 readable(time) + "</text>";
      }
      text_ += "\n";
    }
  }

  void add_labels(Rank rank) {
    const std::string y = number(y_of(rank) + 15);
    text_ += "<text x=\"8\" y=\"" + y + "\">rank " + std::to_string(rank.value()) + ", " + stages_of(timeline_, rank) +
             "</text><text class=\"share\" x=\"" + number(kLeft + kWidth + 8) + "\" y=\"" + y + "\">" +
             percent(timeline_.waiting(rank)) + "</text>\n";
  }

  void add_bar(const Bar& bar) {
    if (bar.end <= bar.begin) return;
    const bool wide = computes(bar.kind);
    const double y = y_of(bar.rank) + (wide ? 2 : 2 + kComputeHeight);
    const double left = x_of(bar.begin);
    text_ += "<rect class=\"" + name_of(bar.kind) + "\" x=\"" + number(left) + "\" y=\"" + number(y) + "\" width=\"" +
             number(x_of(bar.end) - left) + "\" height=\"" + number(wide ? kComputeHeight : kWireHeight) +
             "\"><title>" + escaped(bar.what) + "\n" + readable(bar.begin) + " to " + readable(bar.end) + ", " +
             readable(bar.end - bar.begin) + "</title></rect>";
    const double width = x_of(bar.end) - left;
    if (wide && bar.microbatch >= 0 && width >= kNumberWidth) {
      text_ += "<text class=\"number\" text-anchor=\"middle\" x=\"" + number(left + width / 2) + "\" y=\"" +
               number(y + 13) + "\">" + std::to_string(bar.microbatch) + "</text>";
    }
    text_ += "\n";
  }

  const StepTimeline& timeline_;
  double bottom_ = 0;
  std::string text_;
};

}  // namespace

std::string to_html(const StepTimeline& timeline, const std::string& title, const std::string& mark) {
  if (timeline.bars.size() > kMostBars) {
    throw InvalidArgument("a timeline of " + std::to_string(timeline.bars.size()) +
                          " bars is more than a browser shows; use --trace, or a plan with fewer micro-batches");
  }
  if (!(timeline.step > Seconds{})) throw InvalidArgument("the step takes no time: there is no timeline to draw");
  return Page(timeline, title, mark).make();
}

}  // namespace autopar::tool
