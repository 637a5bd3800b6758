#include "torch/planning/plan_files.hpp"

#include <autopar/capture/module_paths.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/profile_file.hpp>
#include <autopar/io/supervision.hpp>
#include <autopar/plan/report/print.hpp>

#include "torch/planning/graph_dot.hpp"

namespace autopar::planning {

bool PlanFiles::has_plan(int ranks) const {
  return options_.load_plan && !options_.plan_file.empty() && std::filesystem::exists(options_.plan_file) &&
         !is_of_other_start(ranks);
}

bool PlanFiles::is_of_other_start(int ranks) const {
  const auto supervised = supervision(process_environment());
  return supervised && supervised->start > 1 && !options_.plan_file.empty() &&
         std::filesystem::exists(options_.plan_file) && plan().world != ranks;
}

Plan PlanFiles::plan() const { return read_plan(options_.plan_file); }

void PlanFiles::require_replaceable(std::uint64_t model, const std::filesystem::path& trace, bool is_first,
                                    bool is_new) const {
  const auto require = [&](const std::filesystem::path& path, const char* kind) {
    if (!path.empty()) autopar::require_replaceable(path, file_mark(kind, model), overwrite_of(options_));
  };
  require(trace, "trace");
  if (!is_first) return;
  if (is_new && options_.save_plan) require(options_.plan_file, "plan");
  require(options_.graph_file, "graph");
  require(options_.profile_file, "profile");
  require(options_.report_file, "report");
}

void PlanFiles::write(const Plan& plan, bool is_new, const ModelProgram& program, const ModelProfile& profile,
                      const ProfiledCost* costs, const Logger& planner, const Logger& session) const {
  const auto overwrite = overwrite_of(options_);
  if (is_new && options_.save_plan && !is_of_other_start(plan.world))
    write_file("plan_file", options_.plan_file, [&] { write_plan(options_.plan_file, plan, overwrite); });
  const auto graph_mark = file_mark("graph", plan.model);
  write_file("graph_file", options_.graph_file, [&] {
    const auto text = program.shown ? to_dot(program.shown->graph, graph_mark + "\n// " + program.shown->title())
                                    : to_dot(program.graph, graph_mark, plan.stages);
    write_marked_file(options_.graph_file, text, graph_mark, overwrite);
    if (program.shown) session.warn(options_.graph_file + " has " + program.shown->title());
  });
  write_file("profile_file", options_.profile_file, [&] { write_profile(options_.profile_file, profile, overwrite); });
  write_file("report_file", options_.report_file, [&] {
    report_.write_plan(plan, profile, costs,
                       report_.is_page() ? module_paths(program.graph) : std::vector<std::string>());
  });
  planner.write_table(LogLevel::kInfo, to_text(plan));
}

void PlanFiles::write_file(const char* option, const std::string& path, const std::function<void()>& write) const {
  if (path.empty()) return;
  if (options_.plan_only)
    write();
  else
    files_.write(option, write);
}

}  // namespace autopar::planning
