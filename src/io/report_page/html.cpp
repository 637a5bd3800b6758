#include "io/report_page/html.hpp"

#include <cmath>

#include <autopar/core/printable.hpp>
#include <autopar/plan/text.hpp>

namespace autopar::report_page {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable_line(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string attribute(std::string_view name, std::string_view text) {
  return " " + std::string(name) + "=\"" + escaped(text) + "\"";
}

std::string number(double value) {
  if (!std::isfinite(value)) return "0";
  std::string text = detail::formatted("%.3f", value);
  while (text.ends_with('0')) text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string share(double part) { return number(100 * part) + "%"; }

std::string signed_percent(double part) {
  const double percents = 100 * part;
  const char* format = std::abs(percents) < 9.95 ? "%+.1f" : "%+.0f";
  return detail::formatted(format, percents) + " %";
}

std::string table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows) {
  const auto cell = [&](const char* tag, std::size_t column, const std::string& html) {
    const char* kind = columns[column].is_number ? " class=\"n\"" : "";
    return std::string("<") + tag + kind + ">" + html + "</" + tag + ">";
  };
  std::string out = "<div class=\"wide\"><table><thead><tr>";
  for (std::size_t c = 0; c < columns.size(); ++c) out += cell("th", c, escaped(columns[c].head));
  out += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (std::size_t c = 0; c < columns.size() && c < row.size(); ++c) out += cell("td", c, row[c]);
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string section(std::string_view id, std::string_view heading, const std::string& body) {
  return "<section" + attribute("id", id) + ">\n<h2>" + escaped(heading) + "</h2>\n" + body + "</section>\n";
}

std::string remark(std::string_view text) { return "<p class=\"remark\">" + escaped(text) + "</p>\n"; }

std::string legend_entry(std::string_view colour, std::string_view word) {
  return "<span class=\"key\"><i style=\"background:" + std::string(colour) + "\"></i>" + escaped(word) + "</span>";
}

}  // namespace autopar::report_page
