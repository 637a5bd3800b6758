#pragma once

#include <filesystem>
#include <string>

#include <autopar/io/file.hpp>
#include <autopar/plan/report/run_report.hpp>

namespace autopar {

/// A report as one HTML page that needs nothing else: no network, no other file. Its sections have the ids summary,
/// model, timeline, memory, time, errors, runner-ups and advice. A short script of its own adds zooming about the
/// pointer; without scripts everything is there, and zooms and folds by plain HTML. All names are escaped.
///
/// Large models and worlds are shown in part, and the page says so: a few thousand rows of modules, some tens of
/// thousands of bars.
/// @param mark  see `file_mark`; a comment in the first lines
/// @cost size and time O(what is shown), a few MB at most
[[nodiscard]] std::string to_html(const RunReport& report, const std::string& mark);

/// Whether `report_file` names such a page: ".html" or ".htm", in any case of letters.
[[nodiscard]] bool is_page(const std::filesystem::path& path);

/// @throws ConfigError if the file exists and is not a report of this model, unless `overwrite` allows it
void write_report_page(const std::filesystem::path& path, const RunReport& report,
                       Overwrite overwrite = Overwrite::kOwn);

}  // namespace autopar
