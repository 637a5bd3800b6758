#include "plot.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>

namespace {

constexpr double kWidth = 420, kHeight = 300, kMargin = 60;

/// Powers of ten around some values, and where a value lies among them, 0 to 1.
struct Scale {
  int low = 0, high = 1;
  explicit Scale(const std::vector<double>& values) {
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    low = static_cast<int>(std::floor(std::log10(std::max(*least, 1e-3))));
    high = std::max(low + 1, static_cast<int>(std::ceil(std::log10(std::max(*most, 1e-3)))));
  }
  [[nodiscard]] double at(double value) const { return (std::log10(std::max(value, 1e-3)) - low) / (high - low); }
};

std::string power_of_ten(int exponent) {
  std::ostringstream text;
  text << std::pow(10.0, exponent);
  return text.str();
}

void draw_panel(std::ostream& out, const std::vector<Row>& rows, double left, const std::string& title,
                const std::function<double(const Row&)>& value) {
  constexpr const char* kColours[] = {"#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee"};
  std::vector<double> xs, ys;
  std::map<std::string, std::vector<const Row*>> lines;
  for (const Row& row : rows) {
    xs.push_back(static_cast<double>(row.classes));
    ys.push_back(value(row));
    lines[row.head].push_back(&row);
  }
  const Scale x_scale(xs), y_scale(ys);
  const double plot_width = kWidth - 2 * kMargin, plot_height = kHeight - 2 * kMargin;
  const auto x = [&](double at) { return left + kMargin + at * plot_width; };
  const auto y = [&](double at) { return kMargin + (1 - at) * plot_height; };

  out << "<text x='" << left + kWidth / 2 << "' y='30' text-anchor='middle'>" << title << "</text>\n";
  for (int e = x_scale.low; e <= x_scale.high; ++e) {
    const double at = x(static_cast<double>(e - x_scale.low) / (x_scale.high - x_scale.low));
    out << "<line x1='" << at << "' y1='" << y(0) << "' x2='" << at << "' y2='" << y(1) << "' stroke='#ddd'/>"
        << "<text x='" << at << "' y='" << y(0) + 18 << "' text-anchor='middle'>" << power_of_ten(e) << "</text>\n";
  }
  for (int e = y_scale.low; e <= y_scale.high; ++e) {
    const double at = y(static_cast<double>(e - y_scale.low) / (y_scale.high - y_scale.low));
    out << "<line x1='" << x(0) << "' y1='" << at << "' x2='" << x(1) << "' y2='" << at << "' stroke='#ddd'/>"
        << "<text x='" << x(0) - 6 << "' y='" << at + 4 << "' text-anchor='end'>" << power_of_ten(e) << "</text>\n";
  }
  out << "<text x='" << x(0.5) << "' y='" << kHeight - 20 << "' text-anchor='middle'>classes</text>\n";
  std::size_t n = 0;
  for (const auto& [head, points] : lines) {
    const char* const colour = kColours[n % std::size(kColours)];
    out << "<polyline fill='none' stroke='" << colour << "' stroke-width='2' points='";
    for (const Row* row : points)
      out << x(x_scale.at(static_cast<double>(row->classes))) << ',' << y(y_scale.at(value(*row))) << ' ';
    out << "'/>\n<text x='" << x(0) + 8 << "' y='" << y(1) + 16 + 16 * static_cast<double>(n) << "' fill='" << colour
        << "'>" << head << "</text>\n";
    ++n;
  }
}

}  // namespace

std::string plot_of(const std::vector<Row>& rows) {
  std::ostringstream out;
  out << "<svg xmlns='http://www.w3.org/2000/svg' width='" << 2 * kWidth << "' height='" << kHeight
      << "' font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n";
  draw_panel(out, rows, 0, "memory at the peak, MiB a rank", [](const Row& row) { return row.mebibytes; });
  draw_panel(out, rows, kWidth, "time, ms a step", [](const Row& row) { return row.milliseconds; });
  out << "</svg>\n";
  return out.str();
}
