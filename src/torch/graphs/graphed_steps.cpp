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

}  // namespace

void GraphedSteps::run(const std::shared_ptr<Call>& call, bool nothing_waits) {
  call->phase =
      nothing_waits && may_repeat(*call) ? repeats_.next(call->program, call->layout.local) : CudaGraphPhase::kEager;
  if (call->phase == CudaGraphPhase::kReplay && !can_replay(*call)) call->phase = CudaGraphPhase::kEager;
  if (call->phase == CudaGraphPhase::kCapture && !record_step(*call)) call->phase = CudaGraphPhase::kWarmup;
  switch (call->phase) {
    case CudaGraphPhase::kEager:
      return recorded_ ? run_beside_recording(*call) : runner_.forward(*call);
    case CudaGraphPhase::kWarmup: {
      const OnStream here(recording_stream());
      return runner_.forward(*call);
    }
    case CudaGraphPhase::kCapture:
    case CudaGraphPhase::kReplay:
      return replay(call);
  }
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

// What is sent or written to a timeline is the host's work, and so is a gradient of an argument.
bool GraphedSteps::may_record(programs::CapturedProgram& program) const {
  const bool is_asked = options_.cuda_graphs != CudaGraphs::kOff && deployment_.device().is_cuda();
  if (!is_asked || ranks_.size() > 1 || options_.plan_only || !options_.trace_file.empty()) return false;
  return program.repeatable_work().is_whole &&
         std::ranges::none_of(program.inputs, [](const trace::InputSpec& input) { return input.requires_grad; });
}

// What is offloaded is the host's work.
bool GraphedSteps::may_repeat(const Call& call) const {
  if (!call.differentiate || call.accumulate || !parameters_.units().empty()) return false;
  return may_record(*call.program) && (!call.loss_mode || !has_gradients());
}

/// Whether `.grad` of some parameter is defined.
bool GraphedSteps::has_gradients() const {
  return std::ranges::any_of(parameters_.tensors(), [&](const parameters::ManagedTensor& tensor) {
    return tensor.is_parameter && tensor.handle.grad().defined();
  });
}

// Stages of calls that may repeat compute with parameters themselves, or with casts of them.
StepConditions GraphedSteps::conditions_of(const Call& call) {
  StepConditions conditions{call.program->runtime.stages->kept_casts(), {}, {}};
  for (const auto& tensor : parameters_.tensors()) {
    const auto strides = tensor.handle.strides();
    conditions.memory.push_back(tensor.handle.const_data_ptr());
    conditions.strides.insert(conditions.strides.end(), strides.begin(), strides.end());
    conditions.settings.push_back(tensor.handle.requires_grad());
  }
  if (call.loss_mode) {
    const auto& gradient = call.program->loss_gradient(call.loss_scale, deployment_.device());
    conditions.memory.push_back(gradient.const_data_ptr());
  }
  const auto& context = at::globalContext();
  for (const bool setting : {context.deterministicAlgorithms(), context.deterministicCuDNN(), context.benchmarkCuDNN()})
    conditions.settings.push_back(setting);
  for (const auto op : {at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN}) {
    const auto precision = context.float32Precision(at::Float32Backend::CUDA, op);
    conditions.settings.push_back(precision == at::Float32Precision::TF32);
  }
  return conditions;
}

/// Whether a call that cannot be replayed would run beside a recording of the step.
bool GraphedSteps::has_memory_for_two() const {
  auto* const allocator = c10::getDeviceAllocator(deployment_.device().type());
  const auto index = deployment_.device().index();
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto held = allocator->getDeviceStats(index).allocated_bytes.at(kAll).current;
  const auto of_step = std::max<std::int64_t>(deployment_.planned_memory().value() - held, 0);
  return static_cast<std::int64_t>(allocator->getMemoryInfo(index).first) >= 2 * of_step;
}

c10::Stream GraphedSteps::recording_stream() {
  const auto device = deployment_.device();
  if (!stream_) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return *stream_;
}

/// Null if it cannot be recorded; calls like the latest run from then on, and this one has no results yet.
std::unique_ptr<devices::DeviceRecording> GraphedSteps::recording_of(Call& call, const std::function<void()>& work,
                                                                     const devices::DeviceRecording* beside) {
  std::unique_ptr<devices::DeviceRecording> recording;
  std::string reason = "they read memory of the host";
  call.state.may_fail = true;
  if (call.draws.recorded) call.draws.recorded->set_recorded(true);
  try {
    recording = devices::context_of(deployment_.device().type()).record(recording_stream(), work, beside);
  } catch (const std::exception& error) {
    reason = replay::plain_message(error);
  }
  call.state.may_fail = false;
  if (call.draws.recorded) call.draws.recorded->set_recorded(false);
  if (recording) return recording;
  log("steps are not recorded (cuda_graphs): " + reason);
  repeats_.refuse();
  recorded_.reset();
  call.state.drop_run();
  return nullptr;
}

/// Records forward, with a single loss backward as well.
bool GraphedSteps::record_step(Call& call) {
  recorded_.reset();
  const OnStream here(recording_stream());
  c10::getDeviceAllocator(deployment_.device().type())->emptyCache();
  if (!has_memory_for_two()) {
    log("steps are not recorded (cuda_graphs): what a step holds does not fit into memory twice");
    repeats_.refuse();
    return false;
  }
  for (const auto& tensor : call.arguments.tensors) {
    const auto options = tensor.options().device(deployment_.device()).requires_grad(false);
    call.state.inputs.push_back(at::empty_like(tensor, options).copy_(tensor.detach()));
  }
  if (const auto draws = call.program->repeatable_work().draws; draws > 0)
    call.draws.recorded =
        std::make_shared<interpret::RecordedSeeds>(deployment_.device(), draws * call.layout.microbatches);
  auto conditions = conditions_of(call);
  std::vector<at::Tensor> made;
  std::size_t results = 0;
  auto recording = recording_of(call, [&] {
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
  recorded_.emplace(RecordedStep{
      std::move(conditions), {std::move(recording), std::move(inputs), std::move(made), results}, call.draws.recorded});
  recorded_->shares_memory = !has_gradients();
  repeats_.recorded();
  return true;
}

bool GraphedSteps::can_replay(const Call& call) {
  if (recorded_->conditions != conditions_of(call)) {
    recorded_.reset();
    repeats_.forget();
    return false;
  }
  const bool has_no_backward = !call.loss_mode && !recorded_->backward && recorded_->last.expired();
  if (has_no_backward) {  // nobody asked for it, or it could not be recorded
    recorded_.reset();
    repeats_.refuse();
    return false;
  }
  return recorded_->is_free();
}

void GraphedSteps::replay(const std::shared_ptr<Call>& call) {
  if (recorded_->seeds) recorded_->seeds->set(call->draws);
  auto made = recorded_->forward.run(call->arguments.tensors);
  const auto& plan = call->program->plan;
  const auto first_gradient = made.begin() + static_cast<std::ptrdiff_t>(plan.outputs.size());
  call->state.results.assign(made.begin(), first_gradient);
  if (call->loss_mode) {
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

namespace {

std::vector<bool> defined_in(const std::vector<at::Tensor>& tensors) {
  std::vector<bool> defined;
  for (const auto& tensor : tensors) defined.push_back(tensor.defined());
  return defined;
}

}  // namespace

// ---------------------------------------------------------------- backward of a loss outside

StageGradients GraphedSteps::backward(Call& call, const std::vector<std::size_t>& outputs,
                                      const std::vector<at::Tensor>& given, const std::vector<ValueId>& roots,
                                      bool plain) {
  if (call.phase == CudaGraphPhase::kEager) return runner_.backward(call, outputs, given, roots);
  const OnStream here(recording_stream());
  if (call.phase == CudaGraphPhase::kWarmup) return runner_.backward(call, outputs, given, roots);
  const bool is_last = recorded_ && recorded_->last.lock().get() == &call;
  if (call.phase == CudaGraphPhase::kCapture && is_last && plain) record_backward(call, outputs, given, roots);
  const bool fits = is_last && recorded_ && recorded_->backward && plain && recorded_->given == defined_in(given) &&
                    recorded_->backward->is_free();
  if (fits) {
    auto made = recorded_->backward->run(given);
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

void GraphedSteps::record_backward(Call& call, const std::vector<std::size_t>& outputs,
                                   const std::vector<at::Tensor>& given, const std::vector<ValueId>& roots) {
  std::vector<at::Tensor> inputs;
  for (const auto& gradient : given)
    inputs.push_back(gradient.defined() ? at::empty_like(gradient).copy_(gradient) : at::Tensor());
  std::vector<at::Tensor> made;
  const auto* const beside = recorded_->shares_memory ? &recorded_->forward.recording() : nullptr;
  auto recording = recording_of(
      call,
      [&] {
        for (const auto& gradient : runner_.backward(call, outputs, inputs, roots).by_position)
          made.push_back(gradient);
        call.state.drop_run();
      },
      beside);
  if (!recording) return;
  recorded_->backward.emplace(std::move(recording), std::move(inputs), std::move(made), 0);
  recorded_->given = defined_in(given);
}

}  // namespace autopar::graphs
