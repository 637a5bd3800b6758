#include "torch/graphs/graphed_steps.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "capture/replay/plain_message.hpp"
#include "torch/device/device_context.hpp"
#include "torch/ranks/collective_try.hpp"

namespace autopar::graphs {

namespace {

using steps::Call;
using steps::CudaGraphPhase;
using steps::StageGradients;

/// What one stream is given from now on waits for what the other has been given.
void wait(c10::Stream waiting, c10::Stream given) {
  c10::Event event(given.device_type());
  event.record(given);
  event.block(waiting);
}

/// While it lives, the thread queues on a stream, which follows the one it had and is followed by it.
class OnStream {
 public:
  explicit OnStream(c10::Stream stream) : before_(devices::current_stream(stream.device())), here_(stream) {
    wait(stream, before_);
  }
  ~OnStream() {
    try {
      wait(before_, here_.current_stream());
    } catch (...) {  // the device is lost, and whatever is queued next says so
    }
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  c10::Stream before_;
  c10::StreamGuard here_;
};

/// Whether that, or what led to it, is that a device has too little memory.
bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& cause) {
    return is_out_of_memory(cause);
  }
  return false;
}

/// Why the first rank that has a reason cannot record; empty if none has. Collective.
std::string first_reason(ranks::Ranks& ranks, const std::string& mine) {
  const auto reasons = ranks.all_gather(ranks::blob_of(mine), "recording a step");
  for (std::size_t r = 0; r < reasons.size(); ++r) {
    if (!reasons[r].empty()) return "rank " + std::to_string(r) + ": " + ranks::text_of(reasons[r]);
  }
  return {};
}

}  // namespace

obstacle::Bits GraphedSteps::obstacles(const programs::CapturedProgram* known, bool sums_wait, double loss_scale) {
  if (sums_wait || !may_record_here()) return obstacle::kOwnSteps;
  obstacle::Bits found = has_gradients() ? obstacle::kGradients : 0;
  if (!recorded_) return found;
  const auto program = recorded_->program.lock();
  if (program == nullptr || recorded_->conditions != conditions_of(*program, loss_scale))
    found |= obstacle::kOtherConditions;
  if (!recorded_->is_free()) found |= obstacle::kMemoryHeld;
  // Nobody asked for it, or it could not be recorded.
  if (program != nullptr && !program->plan.loss_mode && !recorded_->backward && recorded_->last.expired())
    found |= obstacle::kNoBackward;
  const bool may_be_replayed = found == 0 && known == program.get();
  if (!may_be_replayed && ranks_.size() > 1 && !has_memory_for(1)) found |= obstacle::kLittleMemory;
  return found;
}

void GraphedSteps::run(const std::shared_ptr<Call>& call, obstacle::Bits of_all) {
  call->phase = may_repeat(*call, of_all) ? repeats_.next(call->program, call->layout.local) : CudaGraphPhase::kEager;
  if (call->phase == CudaGraphPhase::kReplay && !can_replay(of_all)) call->phase = CudaGraphPhase::kEager;
  if (call->phase == CudaGraphPhase::kCapture && !record_step(call)) call->phase = CudaGraphPhase::kWarmup;
  switch (call->phase) {
    case CudaGraphPhase::kEager:
      return run_eagerly(*call, of_all);
    case CudaGraphPhase::kWarmup: {
      const OnStream here(recording_stream());
      return runner_.forward(*call);
    }
    case CudaGraphPhase::kCapture:
    case CudaGraphPhase::kReplay:
      return replay(call);
  }
}

// One of several ranks cannot run its part again: they give up a recording before, where memory is scarce.
void GraphedSteps::run_eagerly(Call& call, obstacle::Bits of_all) {
  if (recorded_ && ranks_.size() == 1) return run_beside_recording(call);
  if (recorded_ && (of_all & obstacle::kLittleMemory) != 0) {
    log("steps are not replayed any more (cuda_graphs): a call that is not replayed may not fit into memory beside "
        "what was recorded");
    recorded_.reset();
    repeats_.give_up();
  }
  runner_.forward(call);
}

// What a recording keeps is there for calls that run: a step that is not replayed takes longer, one that fails is lost.
void GraphedSteps::run_beside_recording(Call& call) {
  call.state.may_fail = true;
  bool fits = true;
  try {
    runner_.forward(call);
  } catch (const std::exception& error) {
    if (call.state.has_updated_buffers || !is_out_of_memory(error)) throw;  // what is written once is not written again
    fits = false;
  }
  call.state.may_fail = false;
  if (fits) return;
  log("steps are not replayed any more (cuda_graphs): a call of " + std::to_string(call.batch) +
      " samples takes the memory of what was recorded");
  call.state.drop_run();
  call.state.inputs.clear();  // some may be there
  recorded_.reset();
  repeats_.give_up();
  runner_.forward(call);
}

// What is offloaded is the host's work.
bool GraphedSteps::may_record_here() const {
  if (options_.cuda_graphs == CudaGraphs::kOff || !deployment_.device().is_cuda()) return false;
  if (options_.plan_only) return false;
  if (ranks_.size() > 1 && deployment_.is_started() && !deployment_.wire().can_record()) return false;
  return std::ranges::none_of(parameters_.units(), &parameters::ShardUnit::offloaded);
}

// A gradient of an argument is the host's work.
bool GraphedSteps::may_record(programs::CapturedProgram& program) const {
  return may_record_here() && program.repeatable_work().is_whole &&
         std::ranges::none_of(program.inputs, [](const trace::InputSpec& input) { return input.requires_grad; });
}

bool GraphedSteps::may_repeat(const Call& call, obstacle::Bits of_all) const {
  const obstacle::Bits counted = obstacle::kOwnSteps | (call.loss_mode ? obstacle::kGradients : 0);
  return call.differentiate && (of_all & counted) == 0 && may_record(*call.program);
}

/// Whether `.grad` of some parameter is defined.
bool GraphedSteps::has_gradients() const {
  return std::ranges::any_of(parameters_.tensors(), [&](const parameters::ManagedTensor& tensor) {
    return tensor.is_parameter && tensor.handle.grad().defined();
  });
}

// Stages of calls that may repeat compute with parameters themselves, or with casts of them.
StepConditions GraphedSteps::conditions_of(programs::CapturedProgram& program, double loss_scale) {
  StepConditions conditions{program.runtime.stages->kept_casts(), {}, {}};
  for (const auto& tensor : parameters_.tensors()) {
    conditions.settings.push_back(tensor.handle.requires_grad());
    if (!parameters_.holds(tensor)) continue;
    const auto strides = tensor.handle.strides();
    conditions.memory.push_back(tensor.handle.const_data_ptr());
    conditions.strides.insert(conditions.strides.end(), strides.begin(), strides.end());
  }
  if (program.plan.loss_mode) {
    const auto& gradient = program.loss_gradient(loss_scale, deployment_.device());
    conditions.memory.push_back(gradient.const_data_ptr());
  }
  for (const bool is_ready : fp8_.ready()) conditions.settings.push_back(is_ready);
  const auto& context = at::globalContext();
  for (const bool setting : {context.deterministicAlgorithms(), context.deterministicCuDNN(), context.benchmarkCuDNN()})
    conditions.settings.push_back(setting);
  for (const auto op : {at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN}) {
    const auto precision = context.float32Precision(at::Float32Backend::CUDA, op);
    conditions.settings.push_back(precision == at::Float32Precision::TF32);
  }
  return conditions;
}

/// Whether so many steps fit into the memory that is free: a call that cannot be replayed runs beside a recording.
bool GraphedSteps::has_memory_for(int steps) const {
  auto* const allocator = c10::getDeviceAllocator(deployment_.device().type());
  const auto index = deployment_.device().index();
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = allocator->getDeviceStats(index);
  const auto held = stats.allocated_bytes.at(kAll).current;
  const auto of_step = std::max<std::int64_t>(deployment_.planned_memory().value() - held, 0);
  const auto recorded = recorded_ ? of_step : 0;
  const auto cached = std::max<std::int64_t>(stats.reserved_bytes.at(kAll).current - held - recorded, 0);
  return static_cast<std::int64_t>(allocator->getMemoryInfo(index).first) + cached >= steps * of_step;
}

c10::Stream GraphedSteps::recording_stream() {
  const auto device = deployment_.device();
  if (!stream_) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return *stream_;
}

/// Records on all ranks, or on none: then calls like the latest run from then on, and this one has no results yet.
/// @param prepare  allocates what the work reads, and returns why this rank cannot record; empty if it may
std::optional<GraphedSteps::Recorded> GraphedSteps::recording_of(Call& call,
                                                                 const std::function<std::string()>& prepare,
                                                                 const std::function<void()>& work,
                                                                 const devices::DeviceRecording* beside) {
  Recorded recorded;
  std::string reason;
  const bool exchanges = ranks_.size() > 1;
  if (exchanges) recorded.exchanges.wire = deployment_.wire();
  call.state.may_fail = true;
  try {
    reason = prepare();
    if (call.draws.recorded) call.draws.recorded->set_recorded(true);
    if (exchanges) recorded.exchanges.wire.begin_recording();
    const auto captured = [&] {
      work();
      if (exchanges) recorded.exchanges.operations = recorded.exchanges.wire.end_recording();
    };
    if (reason.empty())
      recorded.work = devices::context_of(deployment_.device().type()).record(recording_stream(), captured, beside);
  } catch (const std::exception& error) {
    reason = replay::plain_message(error);
  }
  if (recorded.work == nullptr && reason.empty()) reason = "they read memory of the host";
  call.state.may_fail = false;
  if (call.draws.recorded) call.draws.recorded->set_recorded(false);
  if (exchanges && !recorded.exchanges.operations) static_cast<void>(recorded.exchanges.wire.end_recording());
  if (exchanges) reason = first_reason(ranks_, reason);
  if (reason.empty()) return recorded;
  log("steps are not recorded (cuda_graphs): " + reason);
  repeats_.refuse();
  recorded_.reset();
  call.state.drop_run();
  return std::nullopt;
}

/// Records forward, with a single loss backward as well.
bool GraphedSteps::record_step(const std::shared_ptr<Call>& of) {
  auto& call = *of;
  recorded_.reset();
  const OnStream here(recording_stream());
  c10::getDeviceAllocator(deployment_.device().type())->emptyCache();
  const auto prepare = [&]() -> std::string {
    if (!has_memory_for(2)) return "what a step holds does not fit into memory twice";
    for (const auto& tensor : call.arguments.tensors) {
      const auto options = tensor.options().device(deployment_.device()).requires_grad(false);
      call.state.inputs.push_back(at::empty_like(tensor, options).copy_(tensor.detach()));
    }
    if (const auto draws = call.program->repeatable_work().draws; draws > 0)
      call.draws.recorded =
          std::make_shared<interpret::RecordedSeeds>(deployment_.device(), draws * call.layout.microbatches);
    return {};
  };
  auto conditions = conditions_of(*call.program, call.loss_scale);
  std::vector<at::Tensor> made;
  std::size_t results = 0;
  auto recording = recording_of(call, prepare, [&] {
    runner_.forward(call);
    made = runner_.results(call);
    results = made.size();
    if (!call.loss_mode) return;
    const auto loss = call.program->plan.outputs[static_cast<std::size_t>(call.program->plan.loss)].value;
    for (const auto& gradient : runner_.gradients(call, {loss}).by_position) made.push_back(gradient);
    call.state.drop_run();
  });
  auto inputs = std::exchange(call.state.inputs, {});
  if (!recording) {
    call.state.has_updated_buffers = false;
    return false;
  }
  RecordedWork forward(std::move(recording->work), std::move(inputs), std::move(made), results,
                       std::move(recording->exchanges));
  recorded_.emplace(RecordedStep{call.program, std::move(conditions), std::move(forward), call.draws.recorded});
  recorded_->shares_memory = !has_gradients();
  repeats_.recorded();
  return true;
}

/// @pre a step is recorded on all ranks
bool GraphedSteps::can_replay(obstacle::Bits of_all) {
  if ((of_all & obstacle::kOtherConditions) != 0) {
    recorded_.reset();
    repeats_.forget();
    return false;
  }
  if ((of_all & obstacle::kNoBackward) != 0) {
    recorded_.reset();
    repeats_.refuse();
    return false;
  }
  return (of_all & obstacle::kMemoryHeld) == 0;
}

void GraphedSteps::replay(const std::shared_ptr<Call>& call) {
  if (recorded_->seeds) recorded_->seeds->set(call->draws);
  const auto begin = runner_.trace().mark();
  auto made = recorded_->forward.run(call->arguments.tensors);
  runner_.trace().add_graph(call->loss_mode ? "step" : "forward", begin);
  const auto& plan = call->program->plan;
  const auto first_gradient = made.begin() + static_cast<std::ptrdiff_t>(plan.outputs.size());
  call->state.results.assign(made.begin(), first_gradient);
  if (call->loss_mode) {
    fp8_.note_agreed();
    call->state.gradients.emplace(first_gradient, made.end());
  } else {
    recorded_->last = call;
    call->versions = versions_of_parameters();
  }
  call->state.has_updated_buffers = true;
  if (call->phase == CudaGraphPhase::kReplay) ++replayed_;
  const auto count_version = [&](ValueId buffer) {
    if (buffer.valid()) parameters_.handle_of(call->program->graph, buffer).unsafeGetTensorImpl()->bump_version();
  };
  for (const auto& norm : plan.batch_norms) {
    count_version(norm.running_mean);
    count_version(norm.running_var);
  }
  for (const auto& update : plan.buffer_updates) count_version(update.buffer);
}

// ---------------------------------------------------------------- backward of a loss outside

obstacle::Bits GraphedSteps::obstacles_behind(const Call& call, const std::vector<bool>& asked, bool plain) const {
  const bool is_last = recorded_ && recorded_->last.lock().get() == &call;
  if (!plain || !is_last) return obstacle::kOtherRequest;
  if (!recorded_->backward) return 0;
  if (recorded_->given != asked) return obstacle::kOtherRequest;
  return recorded_->backward->is_free() ? 0 : obstacle::kMemoryHeld;
}

StageGradients GraphedSteps::backward(Call& call, const Backward& asked) {
  const auto& [outputs, given, roots, own, of_all] = asked;
  if (call.phase == CudaGraphPhase::kEager) return runner_.backward(call, outputs, given, roots);
  const OnStream here(recording_stream());
  if (call.phase == CudaGraphPhase::kWarmup) return runner_.backward(call, outputs, given, roots);
  if (call.phase == CudaGraphPhase::kCapture && of_all == 0) record_backward(call, asked);
  if (of_all == 0 && recorded_ && recorded_->backward) {
    const auto begin = runner_.trace().mark();
    auto made = recorded_->backward->run(given);
    runner_.trace().add_graph("backward", begin);
    fp8_.note_agreed();
    call.state.gradients.emplace(made.begin(), made.end());
    return runner_.gradients(call, roots);
  }
  if (call.phase == CudaGraphPhase::kReplay) {  // it would be so in every step
    repeats_.refuse();
    recorded_.reset();
  }
  if (!call.state.engine) {
    const at::AutoGradMode with_history(true);
    runner_.forward(call);
  }
  return runner_.backward(call, outputs, given, roots);
}

std::vector<std::int64_t> GraphedSteps::versions_of_parameters() const {
  std::vector<std::int64_t> versions;
  for (const auto& tensor : parameters_.tensors())
    versions.push_back(tensor.is_parameter ? tensor.handle._version() : 0);
  return versions;
}

/// A replay reads parameters where they lie, as they are then.
void GraphedSteps::require_same_parameters(const Call& call) const {
  if (call.versions.empty()) return;
  const auto versions = versions_of_parameters();
  for (std::size_t i = 0; i < versions.size(); ++i) {
    const auto& tensor = parameters_.tensors()[i];
    if (versions[i] == call.versions.at(i)) continue;
    throw InvalidArgument("parameter '" + tensor.name() +
                          "' was written between the forward and the backward that needs it; step optimizers and write "
                          "parameters after backward");
  }
}

void GraphedSteps::record_backward(Call& call, const Backward& asked) {
  std::vector<at::Tensor> inputs, made;
  const auto prepare = [&]() -> std::string {
    for (const auto& gradient : asked.given)
      inputs.push_back(gradient.defined() ? at::empty_like(gradient).copy_(gradient) : at::Tensor());
    return {};
  };
  const auto* const beside = recorded_->shares_memory ? &recorded_->forward.recording() : nullptr;
  auto recording = recording_of(
      call, prepare,
      [&] {
        for (const auto& gradient : runner_.backward(call, asked.outputs, inputs, asked.roots).by_position)
          made.push_back(gradient);
        call.state.drop_run();
      },
      beside);
  if (!recording) return;
  recorded_->backward.emplace(std::move(recording->work), std::move(inputs), std::move(made), 0,
                              std::move(recording->exchanges));
  recorded_->given = asked.asked;
}

}  // namespace autopar::graphs
