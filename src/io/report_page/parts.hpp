#pragma once

#include <string>
#include <vector>

#include <autopar/plan/report/run_report.hpp>

namespace autopar::report_page {

/// Ranks that run the same stages: columns of the model's picture.
struct RankGroup {
  std::vector<int> ranks;   ///< ascending
  std::vector<int> stages;  ///< ascending
};
/// In the order of their first ranks; idle ranks are in none.
[[nodiscard]] std::vector<RankGroup> rank_groups(const Plan& plan);

/// "stage 1", "stages 0, 5", "idle".
[[nodiscard]] std::string stages_text(const std::vector<int>& stages);

// The sections of a page, as HTML; each says so where it has nothing to show.
[[nodiscard]] std::string summary_of(const RunReport& report);
[[nodiscard]] std::string model_of(const RunReport& report);
[[nodiscard]] std::string timeline_of(const RunReport& report);
[[nodiscard]] std::string memory_of(const RunReport& report);
[[nodiscard]] std::string time_of(const RunReport& report);
[[nodiscard]] std::string errors_of(const RunReport& report);
[[nodiscard]] std::string runners_up_of(const RunReport& report);
[[nodiscard]] std::string advice_of(const RunReport& report);

}  // namespace autopar::report_page
