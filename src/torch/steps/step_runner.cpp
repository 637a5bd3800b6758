#include "torch/steps/step_runner.hpp"

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <autopar/runtime/executor.hpp>

#include "capture/replay/plain_message.hpp"
#include "torch/device/room_for_messages.hpp"

namespace autopar::steps {

// ---------------------------------------------------------------- forward

void StepRunner::forward(Call& call) {
  auto& program = *call.program;
  program.runtime.stages->refresh_leaves();
  parameters_.upload();
  if (call.differentiate && !fp8_.empty()) begin_fp8_call();
  auto& inputs = call.state.inputs;
  if (inputs.empty()) {
    for (const auto& tensor : call.arguments.tensors) inputs.push_back(tensor.detach().to(deployment_.device()));
  }
  interpret::SliceContext local;
  local.samples = call.layout.local[ranks_.rank().index()];
  local.batch = call.batch;
  local.first_sample = calls::first_sample(call.layout, ranks_.rank());
  local.draws = call.draws;
  run_stages(call, local);
  complete_sums(call);
  run_epilogue(call, local);
  if (!std::exchange(call.state.has_updated_buffers, true)) buffers_.run(call);
  parameters_.wait_for_upload();  // an optimizer on the host may step as soon as the call returns
}

void StepRunner::begin_fp8_call() {
  if (!fp8_.all_ready()) {
    for (const auto& seen : ranks_.all_gather(fp8_.seen_gradients(), "agreeing on layers that run in 8 bits"))
      fp8_.add_seen_gradients(seen);
  }
  fp8_.begin_call();
}

void StepRunner::run_stages(Call& call, const interpret::SliceContext& local) {
  auto& program = *call.program;
  auto& state = call.state;
  const BatchSplit split(program.runtime.stages->pipeline(), call.layout);
  engine::CallContext context{split, ranks_.rank(), call.batch, call.draws, call.differentiate, state.inputs, {}, {}};
  if (!program.plan.prologue.empty())
    state.known = program.runtime.prologue->run(context.inputs, local, deployment_.sums());
  context.prologue = state.known.values;
  context.counts = state.known.counts;
  context.observer = trace_.observer(call);
  state.engine = std::make_shared<engine::TorchEngine>(*program.runtime.stages, std::move(context));
  if (call.loss_mode) {
    const auto loss = program.plan.outputs[static_cast<std::size_t>(program.plan.loss)].value;
    state.engine->add_sum_gradient(loss, program.loss_gradient(call.loss_scale, deployment_.device()));
    state.engine->start_gradients();
  }
  execute(call, call.loss_mode ? Phase::kStep : Phase::kForward);
  program.runtime.stages->drop_casts();
}

void StepRunner::complete_sums(Call& call) {
  const auto& program = *call.program;
  const auto sums = algebra::global_sums(program.graph, program.plan);
  const bool with_fp8 = call.loss_mode && !fp8_.empty();  // otherwise the backward is to come
  if (sums.empty() && !with_fp8) return;
  std::vector<at::Tensor> addends;
  for (const auto& sum : sums) addends.push_back(call.state.engine->sum(sum.value));
  if (with_fp8) addends.push_back(fp8_.take_seen(ranks_.rank().index(), static_cast<std::size_t>(ranks_.size())));
  const auto totals = deployment_.sums().sum(addends);
  if (with_fp8) fp8_.agree(totals.back());
  for (std::size_t i = 0; i < sums.size(); ++i)
    call.state.sums[sums[i].value] = totals[i].to(program.graph.value(sums[i].value).dtype);
}

void StepRunner::run_epilogue(Call& call, const interpret::SliceContext& local) {
  const auto& program = *call.program;
  auto& state = call.state;
  if (program.runtime.epilogue->empty()) return;
  auto whole = local;
  whole.samples = whole.batch;
  whole.first_sample = 0;
  whole.counts = &state.known.counts;
  auto known = state.known.values;
  for (const auto buffer : program.plan.prologue_leaves) {  // as they are before this call, and not to be written
    known.emplace_back(buffer, parameters_.handle_of(program.graph, buffer).detach().clone());
  }
  state.tail = program.runtime.epilogue->run(state.sums, known, whole, call.differentiate);
}

void StepRunner::execute(Call& call, Phase phase) {
  auto& program = *call.program;
  const bool reduce = phase != Phase::kForward && !call.accumulate;
  const auto& actions = program.actions(call.layout, deployment_.plan(), phase, reduce, ranks_.rank());
  ExecutorHooks hooks;
  hooks.fail = [&](std::string_view action, std::string_view message) {
    if (!call.state.may_fail) ranks_.fail(action, message);
  };
  hooks.message = replay::plain_message;
  if (trace_.takes_actions(call)) {
    hooks.trace = [this](const Action& action, ExecutorHooks::Clock::time_point begin,
                         ExecutorHooks::Clock::time_point end) { trace_.add(action, begin, end); };
  }
  if (watch_) {
    hooks.trace = [this, trace = std::move(hooks.trace)](const Action& action, ExecutorHooks::Clock::time_point begin,
                                                         ExecutorHooks::Clock::time_point end) {
      if (trace) trace(action, begin, end);
      watch_(action, begin, end);
    };
  }
  const devices::RoomForMessages room(deployment_.sends_messages(), deployment_.device());
  const auto& runtime = program.runtime;
  Executor executor(*call.state.engine, deployment_.wire(),
                    {runtime.groups, runtime.gather_groups, runtime.tensor_groups}, hooks);
  executor.run(actions);
  if (const auto log = ranks_.logger(LogModule::kExecutor); log.enabled(LogLevel::kTrace)) {
    log.write(LogLevel::kTrace, "ran " + std::to_string(actions.size()) + " actions" +
                                    (phase == Phase::kStep      ? " of a step"
                                     : phase == Phase::kForward ? " of a forward"
                                                                : " of a backward"));
  }
}

std::vector<at::Tensor> StepRunner::results(Call& call) {
  if (!call.state.results.empty()) return std::move(call.state.results);
  std::vector<at::Tensor> results;
  for (const auto& output : call.program->plan.outputs) {
    const auto value = output.value;
    switch (output.kind) {
      case algebra::OutputKind::kBatched:
        results.push_back(call.state.engine->take_result(value));
        break;
      case algebra::OutputKind::kPartialSum:
      case algebra::OutputKind::kReplicated:
        results.push_back(call.state.sums.at(value).clone());
        break;
      case algebra::OutputKind::kEpilogue:
        results.push_back(call.state.tail->results.at(value).detach().clone());
        break;
      case algebra::OutputKind::kPrologue:
        for (const auto& [known, tensor] : call.state.known.values) {
          if (known == value) results.push_back(tensor.clone());
        }
        break;
      case algebra::OutputKind::kInput: {
        const auto position = static_cast<std::size_t>(call.program->graph.value(value).position);
        results.push_back(call.arguments.tensors[position].clone());
        break;
      }
    }
  }
  return results;
}

// ---------------------------------------------------------------- backward

StageGradients StepRunner::backward(Call& call, const std::vector<std::size_t>& outputs,
                                    const std::vector<at::Tensor>& given, const std::vector<ValueId>& roots) {
  call.state.engine->start_gradients();
  std::map<ValueId, at::Tensor> of_tail;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (!given[k].defined()) continue;
    const auto& output = call.program->plan.outputs[outputs[k]];
    if (output.kind == algebra::OutputKind::kEpilogue)
      of_tail[output.value] = given[k];
    else if (output.kind == algebra::OutputKind::kBatched)
      call.state.engine->add_result_gradient(output.value, given[k]);
    else
      call.state.engine->add_sum_gradient(output.value, given[k]);
  }
  if (!of_tail.empty()) {
    for (auto& [value, gradient] : programs::Epilogue::gradients(*call.state.tail, of_tail, false)) {
      call.state.engine->add_sum_gradient(value, gradient);
    }
  }
  execute(call, Phase::kBackward);
  if (!fp8_.empty()) {
    const auto seen = fp8_.take_seen(ranks_.rank().index(), static_cast<std::size_t>(ranks_.size()));
    fp8_.agree(deployment_.sums().sum({seen})[0]);
  }
  return gradients(call, roots);
}

StageGradients StepRunner::gradients(Call& call, const std::vector<ValueId>& roots) {
  StageGradients made{call.program, &call.program->reached(roots), call.offered, {}, {}};
  if (call.state.gradients) {
    made.by_position = std::move(*call.state.gradients);
    return made;
  }
  made.by_position = call.state.engine->take_gradients();
  made.retired = call.state.engine->take_retired();
  for (std::size_t i = 0; i < made.reached->handles.size(); ++i) {
    auto& gradient = made.by_position[made.reached->positions[i]];
    if (!gradient.defined())
      gradient = at::zeros_like(made.reached->handles[i], at::TensorOptions().device(deployment_.device()));
  }
  return made;
}

std::vector<at::Tensor> StepRunner::argument_gradients(Call& call) {
  std::vector<at::Tensor> gradients(call.arguments.tensors.size());
  std::vector<std::size_t> shared;
  std::vector<at::Tensor> addends;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!call.program->inputs[i].requires_grad) continue;
    gradients[i] = call.state.engine->take_input_gradient(i);
    if (call.program->inputs[i].batch_dim) continue;
    shared.push_back(i);
    addends.push_back(gradients[i]);
  }
  if (shared.empty()) return gradients;
  const auto totals = deployment_.sums().sum(addends);
  for (std::size_t k = 0; k < shared.size(); ++k) gradients[shared[k]] = totals[k];
  return gradients;
}

}  // namespace autopar::steps
