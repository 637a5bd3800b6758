#include "torch/steps/step_trace.hpp"

#include <chrono>
#include <string>

#include "torch/planning/plan_files.hpp"

namespace autopar::steps {

std::filesystem::path StepTrace::path() const {
  std::filesystem::path path = options_.trace_file;
  if (ranks_ == 1 || path.empty()) return path;
  const auto ending = path.extension().string();
  return path.replace_extension("." + std::to_string(rank_.value()) + ending);
}

void StepTrace::begin_step() {
  events_.clear();
  start_ = ExecutorHooks::Clock::now();
}

void StepTrace::add(const Action& action, ExecutorHooks::Clock::time_point begin,
                    ExecutorHooks::Clock::time_point end) {
  const auto since_start = [this](ExecutorHooks::Clock::time_point time) {
    return Seconds(std::chrono::duration<double>(time - start_).count());
  };
  events_.push_back({rank_, is_compute(action.kind) ? "compute" : "communication", describe(action), since_start(begin),
                     since_start(end)});
}

void StepTrace::write(std::uint64_t model) {
  files_.write("trace_file", [&] { write_chrome_trace(path(), events_, model, planning::overwrite_of(options_)); });
}

}  // namespace autopar::steps
