#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace autopar::report_page {

/// Text as an element's content or an attribute's value: nothing in it is markup, or moves a line.
[[nodiscard]] std::string escaped(std::string_view text);
/// ` name="text"`, escaped.
[[nodiscard]] std::string attribute(std::string_view name, std::string_view text);
/// "12.345": a length or a share for CSS and SVG, whatever the locale. What is not a number is 0.
[[nodiscard]] std::string number(double value);
/// "12.345%" of a share.
[[nodiscard]] std::string share(double part);
/// "+12 %", "-3.4 %": a relative error or gain, with two digits.
[[nodiscard]] std::string signed_percent(double part);

/// Colours of stages, which repeat.
inline constexpr std::array<std::string_view, 10> kStageColours{
    {"#3b6fb6", "#d9822b", "#2f8f63", "#a7498f", "#8a6d3b", "#2a9aa8", "#c4504b", "#6b63b5", "#7f9a2d", "#5b6b7d"}};
[[nodiscard]] constexpr std::string_view colour_of_stage(int stage) {
  return kStageColours[static_cast<std::size_t>(stage < 0 ? 0 : stage) % kStageColours.size()];
}

/// One column of a table.
struct Column {
  std::string_view head;
  bool is_number = false;  ///< aligned to the right, not broken
};
/// A table that scrolls on its own where it is too wide. @param rows  cells as HTML
[[nodiscard]] std::string table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows);

/// A section with its heading. @param body  HTML
[[nodiscard]] std::string section(std::string_view id, std::string_view heading, const std::string& body);
/// A paragraph that says why something is not there, or what it is. @param text  not escaped yet
[[nodiscard]] std::string remark(std::string_view text);

/// A coloured square and a word.
[[nodiscard]] std::string legend_entry(std::string_view colour, std::string_view word);

}  // namespace autopar::report_page
