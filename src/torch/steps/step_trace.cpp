#include "torch/steps/step_trace.hpp"

#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include <autopar/io/host_name.hpp>

#include "torch/steps/op_bars.hpp"
#include "torch/steps/optimizer_bars.hpp"
#include "torch/steps/trace_record.hpp"
#include "torch/steps/trace_writer.hpp"

namespace autopar::steps {

namespace {

/// On devices with a queue, where timing each operator costs the host more than running it.
constexpr std::int64_t kStepsBetweenOperators = 100;
constexpr std::int64_t kStepsBetweenKept = 16;  // where the file is written at the end

TraceBar host_bar(TraceCategory category, std::string name, TraceClock::Time begin, TraceClock::Time end) {
  return {.lane = "host", .category = category, .name = std::move(name), .begin = {begin, {}}, .end = {end, {}}};
}

}  // namespace

struct StepTrace::Running {
  Running(const Options& options, planning::OptionalFiles& files, ranks::Ranks& ranks,
          const parameters::ParameterStore& parameters, c10::Device device)
      : clock(device),
        ops(clock, record),
        optimizers(parameters, clock,
                   [this](const std::string& name, const TraceMark& begin, const TraceMark& end) {
                     record.add({.lane = clock.has_queue() ? "device" : "optimizer",
                                 .category = TraceCategory::kOptimizer,
                                 .name = name,
                                 .begin = begin,
                                 .end = end});
                   }),
        writer(options, files, ranks) {}

  TraceClock clock;
  TraceRecord record;
  OpBars ops;
  OptimizerBars optimizers;
  TraceWriter writer;
  std::int64_t number = 0;                   ///< of the step
  std::optional<std::int64_t> of_operators;  ///< the latest whose operators are timed
  int interval = 0;                          ///< steps between writings; 0 = at the end
  std::int64_t ended = 0;                    ///< steps
};

StepTrace::StepTrace(const Options& options, planning::OptionalFiles& files, ranks::Ranks& ranks,
                     const parameters::ParameterStore& parameters, const deployment::Deployment& deployment)
    : options_(options), files_(files), ranks_(ranks), parameters_(parameters), deployment_(deployment) {}

StepTrace::~StepTrace() { finish(); }

std::filesystem::path StepTrace::path() const { return ranks_.is_first() ? options_.trace_file : ""; }

bool StepTrace::start() {
  running_ = std::make_unique<Running>(options_, files_, ranks_, parameters_, deployment_.device());
  if (running_->writer.start()) {
    running_->interval = running_->writer.interval(options_.trace_every);
    return true;
  }
  running_.reset();
  is_over_ = true;
  return false;
}

void StepTrace::enter(bool inside_autograd) {
  if (!is_on()) return;
  const auto now = std::chrono::steady_clock::now();
  if (running_ != nullptr) {
    if (inside_autograd)
      running_->optimizers.pause();
    else
      running_->optimizers.stop();
    if (left_) running_->record.add(host_bar(TraceCategory::kBetweenCalls, "between calls", *left_, now));
  }
  left_.reset();
  entered_ = now;
  inside_autograd_ = inside_autograd;
}

void StepTrace::begin_step(std::int64_t number) {
  if (!is_on() || (running_ == nullptr && !start())) return;
  running_->clock.align();
  running_->number = number;
  running_->record.begin_step(number);
}

bool StepTrace::takes_actions(const Call& call) const {
  return running_ != nullptr && !is_over_ &&
         (call.phase == CudaGraphPhase::kEager || call.phase == CudaGraphPhase::kWarmup);
}

replay::OpObserver* StepTrace::observer(const Call& call) {
  if (!takes_actions(call)) return nullptr;
  auto& running = *running_;
  const bool is_due = !running.clock.has_queue() || call.phase == CudaGraphPhase::kWarmup || !running.of_operators ||
                      running.number - *running.of_operators >= kStepsBetweenOperators;
  if (!is_due) return nullptr;
  running.of_operators = running.number;
  running.ops.watch(call.program, call.program->runnable());
  return &running.ops;
}

void StepTrace::add(const Action& action, ExecutorHooks::Clock::time_point begin,
                    ExecutorHooks::Clock::time_point end) {
  auto& running = *running_;
  if (is_compute(action.kind)) running.ops.end_action(end);
  const char* const computes = running.clock.has_queue() ? "compute (issued by the host)" : "compute";
  auto bar = host_bar(category_of(bar_kind_of(action)), describe(action), begin, end);
  bar.lane = is_compute(action.kind) ? computes : "communication";
  running.record.add(std::move(bar));
}

std::optional<TraceMark> StepTrace::mark() const {
  if (running_ == nullptr || is_over_) return std::nullopt;
  return running_->clock.now();
}

void StepTrace::add_graph(const char* name, const std::optional<TraceMark>& begin) {
  if (!begin || running_ == nullptr || is_over_) return;
  running_->record.add({.lane = "device",
                        .category = TraceCategory::kGraph,
                        .name = name,
                        .begin = *begin,
                        .end = running_->clock.now()});
}

void StepTrace::leave(const char* name, bool ends_step) {
  if (running_ == nullptr || is_over_ || !entered_) return;
  auto& running = *running_;
  running.record.add(host_bar(TraceCategory::kCall, name, *entered_, std::chrono::steady_clock::now()));
  entered_.reset();
  if (ends_step) {
    const bool has_marks = running.clock.has_queue() && running.of_operators == running.number;
    if (has_marks) running.record.resolve(running.clock);  // a mark for each operator
    ++running.ended;
    if (running.interval > 0 && running.ended % running.interval == 0)
      running.writer.write(part());
    else if (running.interval == 0 && running.ended % kStepsBetweenKept == 0)
      running.writer.keep(part());
  }
  if (inside_autograd_)
    running.optimizers.resume();
  else
    running.optimizers.start();
  left_ = std::chrono::steady_clock::now();
}

TracePart StepTrace::part() {
  auto& running = *running_;
  running.record.resolve(running.clock);
  const auto rank = ranks_.rank();
  const auto name =
      "rank " + std::to_string(rank.value()) + " (" + host_name() + ", " + deployment_.device().str() + ")";
  return {deployment_.plan().model,
          {rank, name, running.record.note()},
          running.record.events(rank, [&running](Time time) { return running.writer.seconds(time); })};
}

void StepTrace::finish() noexcept {
  if (running_ == nullptr || is_over_) return;
  try {
    running_->optimizers.stop();
    is_over_ = true;
    if (!running_->record.empty()) running_->writer.finish(part());
  } catch (const std::exception& error) {
    is_over_ = true;
    ranks_.logger(LogModule::kSession).warn(std::string("the trace is not written: ") + error.what());
  }
}

}  // namespace autopar::steps
