#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include <autopar/io/trace_parts.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/runtime/executor.hpp>

#include "torch/deployment/deployment.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/planning/optional_files.hpp"
#include "torch/ranks/ranks.hpp"
#include "torch/steps/step_call.hpp"
#include "torch/steps/trace_clock.hpp"

namespace autopar::steps {

/// The timeline that `Options::trace_file` asks for: actions, operators, optimizers and the time between calls of the
/// newest steps of all ranks. Without the option every member returns at once.
///
///   trace.enter();             // a call begins
///   trace.begin_step(number);  // collective at first
///   …                          // observer, add, add_graph
///   trace.leave("call", true); // collective at steps in which the file is written
///   trace.finish();            // the model ends
class StepTrace {
 public:
  /// @pre what is referred to outlives this
  StepTrace(const Options& options, planning::OptionalFiles& files, ranks::Ranks& ranks,
            const parameters::ParameterStore& parameters, const deployment::Deployment& deployment);
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;
  ~StepTrace();

  /// The file that this rank writes; empty: none.
  [[nodiscard]] std::filesystem::path path() const;

  /// A call of the model begins, or, inside autograd's engine, the backward of a loss outside.
  void enter(bool inside_autograd = false);
  /// @param number  of the call, from 1
  /// @pre the model is deployed
  void begin_step(std::int64_t number);
  /// What times the operators of a call that runs eagerly; null: nobody.
  [[nodiscard]] replay::OpObserver* observer(const Call& call);
  /// Whether actions of a call are to be added: it runs eagerly, and there is a timeline.
  [[nodiscard]] bool takes_actions(const Call& call) const;
  void add(const Action& action, ExecutorHooks::Clock::time_point begin, ExecutorHooks::Clock::time_point end);
  /// Where the device stands; nothing without a timeline. Not while a stream is captured.
  [[nodiscard]] std::optional<TraceMark> mark() const;
  /// What was replayed since `begin`.
  void add_graph(const char* name, const std::optional<TraceMark>& begin);
  /// What has been entered ends, with `ends_step` its step as well.
  void leave(const char* name, bool ends_step);
  /// Writes what is not written yet, and records no more. Not collective. Never throws: what goes wrong is a warning.
  void finish() noexcept;

 private:
  struct Running;
  using Time = TraceClock::Time;

  [[nodiscard]] bool is_on() const { return !options_.trace_file.empty() && !is_over_; }
  [[nodiscard]] bool start();
  [[nodiscard]] TracePart part();

  const Options& options_;
  planning::OptionalFiles& files_;
  ranks::Ranks& ranks_;
  const parameters::ParameterStore& parameters_;
  const deployment::Deployment& deployment_;
  bool is_over_ = false;
  std::unique_ptr<Running> running_;  ///< since the first step
  std::optional<Time> entered_;       ///< the call that is under way
  bool inside_autograd_ = false;      ///< it is a backward
  std::optional<Time> left_;          ///< the last one
};

}  // namespace autopar::steps
