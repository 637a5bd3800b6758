#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include <autopar/cost/model_profile.hpp>
#include <autopar/io/file.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/runtime/log.hpp>

#include "torch/planning/model_program.hpp"
#include "torch/planning/optional_files.hpp"
#include "torch/planning/report_file.hpp"

namespace autopar::planning {

/// Which files may be replaced.
[[nodiscard]] inline Overwrite overwrite_of(const Options& options) {
  return options.overwrite ? Overwrite::kAny : Overwrite::kOwn;
}

/// The files of a plan: read, written and refused where `Options` names them.
class PlanFiles {
 public:
  /// @pre all outlive this
  PlanFiles(const Options& options, OptionalFiles& files, ReportFile& report)
      : options_(options), files_(files), report_(report) {}

  /// Whether what actions cost is asked for even where a plan is read: for the page of `report_file`.
  [[nodiscard]] bool shows_costs() const { return report_.is_page(); }

  /// Whether there is a plan file to read.
  [[nodiscard]] bool has_plan(int ranks) const;
  /// Whether that is of an earlier start under `autopar run`, which had another number of ranks: it is neither read nor
  /// replaced.
  [[nodiscard]] bool is_of_other_start(int ranks) const;
  /// @pre has_plan
  [[nodiscard]] Plan plan() const;
  /// Before anything is measured or planned for them.
  /// @param trace    the trace file of this rank; empty: none
  /// @param is_first whether this is rank 0, which writes the other files
  /// @param is_new   whether the plan will be a new one
  /// @throws ConfigError if a file is there that is not autopar's
  void require_replaceable(std::uint64_t model, const std::filesystem::path& trace, bool is_first, bool is_new) const;
  /// Rank 0's: the plan, if it is new, and what describes it.
  /// @param costs  of the page of `report_file`; null: unknown
  void write(const Plan& plan, bool is_new, const ModelProgram& program, const ModelProfile& profile,
             const ProfiledCost* costs, const Logger& planner, const Logger& session) const;

 private:
  /// Who asks for nothing but files, by plan_only, cannot do without them.
  void write_file(const char* option, const std::string& path, const std::function<void()>& write) const;

  const Options& options_;
  OptionalFiles& files_;
  ReportFile& report_;
};

}  // namespace autopar::planning
