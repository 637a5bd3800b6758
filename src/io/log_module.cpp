#include <autopar/io/log_module.hpp>

#include <array>

namespace autopar {

namespace {

constexpr std::array<std::string_view, 6> kLevelNames{"trace", "debug", "info", "warn", "error", "off"};
constexpr std::array<std::string_view, kLogModules> kModuleNames{"World",    "Transport", "Capture",   "Passes",
                                                                 "Profiler", "Planner",   "Schedule",  "Executor",
                                                                 "Session",  "Optimizer", "Checkpoint"};

}  // namespace

std::optional<LogLevel> log_level_named(std::string_view name) {
  for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == name) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

std::optional<LogModule> log_module_named(std::string_view name) {
  for (std::size_t i = 0; i < kModuleNames.size(); ++i) {
    if (kModuleNames[i] == name) return static_cast<LogModule>(i);
  }
  return std::nullopt;
}

std::string_view name_of(LogModule module) { return kModuleNames[static_cast<std::size_t>(module)]; }

std::vector<std::string> log_module_names() { return {kModuleNames.begin(), kModuleNames.end()}; }

const std::vector<RanncLogger>& rannc_loggers() {
  static const std::vector<RanncLogger> table = {
      {"RaNNCModule", LogModule::kSession},    {"RaNNCProcess", LogModule::kWorld},
      {"GraphLauncher", LogModule::kExecutor}, {"GraphValueStorage", LogModule::kExecutor},
      {"GraphUtil", LogModule::kCapture},      {"Decomposer", LogModule::kPlanner},
      {"Decomposition", LogModule::kPlanner},  {"GraphProfiler", LogModule::kProfiler},
      {"ParamStorage", LogModule::kOptimizer}, {"GraphConnector", LogModule::kSchedule},
      {"TorchDriver", LogModule::kExecutor},   {"AllReduceRunner", LogModule::kTransport},
      {"MLPartitioner", LogModule::kPlanner},  {"DPStaging", LogModule::kPlanner},
  };
  return table;
}

}  // namespace autopar
