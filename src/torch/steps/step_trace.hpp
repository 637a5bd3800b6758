#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/io/trace_file.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/runtime/executor.hpp>

#include "torch/planning/optional_files.hpp"

namespace autopar::steps {

/// The timeline of this rank's latest step, where `Options::trace_file` asks for it.
class StepTrace {
 public:
  /// @pre what is referred to outlives this
  StepTrace(const Options& options, planning::OptionalFiles& files, Rank rank, int ranks)
      : options_(options), files_(files), rank_(rank), ranks_(ranks) {}

  [[nodiscard]] bool is_on() const { return !options_.trace_file.empty(); }
  /// Of this rank; empty: there is none.
  [[nodiscard]] std::filesystem::path path() const;
  /// Forgets the last step.
  void begin_step();
  void add(const Action& action, ExecutorHooks::Clock::time_point begin, ExecutorHooks::Clock::time_point end);
  void write(std::uint64_t model);

 private:
  const Options& options_;
  planning::OptionalFiles& files_;
  Rank rank_;
  int ranks_;
  std::vector<TraceEvent> events_;
  ExecutorHooks::Clock::time_point start_;
};

}  // namespace autopar::steps
