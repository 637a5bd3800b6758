#include "torch/session/session_impl.hpp"

#include <chrono>
#include <filesystem>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <autopar/core/error.hpp>
#include <autopar/runtime/executor.hpp>

#include "torch/session/plan_only.hpp"
#include "torch/session/result_node.hpp"
#include "torch/session/tf32_scope.hpp"

namespace autopar {

namespace {

bool any_differentiable(const BatchPlan& plan) {
  for (const auto& output : plan.outputs) {
    if (output.differentiable && output.kind != OutputKind::kInput) return true;
  }
  return false;
}

at::Tensor multiplied(const at::Tensor& gradient, const at::Tensor& factor) {
  return gradient.mul(factor.reshape({}).to(gradient.options()));
}

/// A gradient as autograd wants it for an argument.
at::Tensor like_argument(const at::Tensor& gradient, const at::Tensor& argument) {
  return gradient.defined() ? gradient.to(argument.options().requires_grad(false)) : gradient;
}

}  // namespace

CallHeader Session::Impl::next_header(CallKind kind) {
  CallHeader header;
  header.kind = kind;
  header.serial = ++serial_;
  header.accumulates = accumulating_ && (kind == CallKind::kForward || kind == CallKind::kBackward);
  header.has_pending = !pending_.empty();
  header.loss_scale = scaler_ ? scaler_->scale() : 1;
  return header;
}

CallResult Session::Impl::call(const Flattened& arguments, const ForwardFunction& forward) {
  const auto start = std::chrono::steady_clock::now();
  resolve_once();
  const Tf32Scope tf32(options_.precision == "tf32", device_);
  if (options_.plan_only) {
    prepare(arguments, forward);
    detail::end_well_where_plan_only_is_uncaught();
    throw PlanOnly("plan_only is set, so the model is planned" +
                       (options_.plan_file.empty() ? "" : " (see '" + options_.plan_file + "')") +
                       " and not run; unset it to train",
                   world_.rank_id());
  }
  const auto call = std::make_shared<Call>();
  call->arguments = guarded("forward", [&] { return inspect_arguments(arguments, options_); });
  const auto key = capture_key(call->arguments);
  auto header = next_header(CallKind::kForward);
  header.needs_capture = needs_capture(key);
  header.members_changed = members_changed(key, call->arguments);
  header.shared = call->arguments.shared;
  header.samples = call->arguments.has_batch ? call->arguments.samples : (world_.rank() == 0 ? 1 : 0);
  const auto headers = exchange(world_, header, key);
  open(*call, headers);
  bool capture_again = false, changed = false, pending = false;
  for (const auto& other : headers) {
    capture_again = capture_again || other.needs_capture;
    changed = changed || other.members_changed;
    pending = pending || other.has_pending;
  }
  if (!capture_again) capture_again = is_outdated(**programs_.find(key), call->arguments, forward, changed);
  if (capture_again) capture_and_deploy(call->arguments, key, call->batch, forward);
  call->program = *programs_.find(key);
  auto& verification = call->program->verification;
  ++verification.calls;
  if (capture_again) verification.agreed = verification.calls;
  call->layout.microbatches = plan_->microbatches;
  require_statistics(*call);
  check_memory(*call->program, call->batch);
  verify_sizes(*call->program, call->arguments, forward, call->layout);
  call->accumulate = header.accumulates;

  return guarded("forward", [&] {
    run_forward(*call);
    if (pending && !call->accumulate) reduce_pending();
    auto results = collect_results(*call);
    if (call->loss_mode) attach_loss_history(*call, results);
    else if (call->differentiate) attach_output_history(call, results);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    ++stats_.calls;
    if (call->loss_mode) {
      losses_.add(results[static_cast<std::size_t>(call->program->plan.loss)], stats_.calls);
      stats_.losses_not_finite = losses_.not_finite();
    }
    stats_.microbatches = call->layout.microbatches;
    stats_.global_samples = call->batch;
    stats_.last_call = Seconds(spent.count());
    CallResult result{std::vector<at::Tensor>(call->program->result_count), call->program->prototype};
    for (std::size_t i = 0; i < results.size(); ++i) result.tensors[call->program->result_positions[i]] = results[i];
    return result;
  });
}

void Session::Impl::open(Call& call, const std::vector<CallHeader>& headers) {
  call.batch = 0;
  for (const auto& header : headers) {
    call.layout.local.push_back(header.samples);
    call.batch += header.samples;
  }
  if (call.batch == 0) {
    throw InvalidArgument("the batches of all " + std::to_string(headers.size()) +
                          " ranks are empty; at least one rank must bring a sample");
  }
}

void Session::Impl::prepare(const Flattened& arguments, const ForwardFunction& forward) {
  resolve_once();
  const Tf32Scope tf32(options_.precision == "tf32", device_);
  Call call;
  call.arguments = guarded("prepare", [&] { return inspect_arguments(arguments, options_); });
  const auto key = capture_key(call.arguments);
  auto header = next_header(CallKind::kPrepare);
  header.shared = call.arguments.shared;
  header.samples = call.arguments.has_batch ? call.arguments.samples : (world_.rank() == 0 ? 1 : 0);
  header.needs_capture = needs_capture(key);
  const auto headers = exchange(world_, header, key);
  open(call, headers);
  bool capture_again = false;
  for (const auto& other : headers) capture_again = capture_again || other.needs_capture;
  if (capture_again) capture_and_deploy(call.arguments, key, call.batch, forward);
}

// ---------------------------------------------------------------- running

void Session::Impl::run_forward(Call& call) {
  auto& program = *call.program;
  program.runtime->refresh_leaves();
  upload_owners();
  call.differentiate = at::GradMode::is_enabled() && any_differentiable(program.plan);
  call.loss_mode = call.differentiate && program.plan.loss_mode;
  if (call.differentiate) warn_of_second_gradients();
  if (call.differentiate && scaler_) call.loss_scale = scaler_->scale();

  const BatchSplit split(program.runtime->pipeline(), call.layout);
  CallContext context{split, world_.rank_id(), call.batch, {seed_, static_cast<std::uint64_t>(stats_.calls)},
                      call.differentiate, {}, {}, {}};
  for (const auto& tensor : call.arguments.tensors) context.inputs.push_back(tensor.detach().to(device_));

  ShareContext local;
  local.samples = call.layout.local[world_.rank_id().index()];
  local.batch = call.batch;
  for (int r = 0; r < world_.rank(); ++r) local.first_sample += call.layout.local[static_cast<std::size_t>(r)];
  local.draws = context.draws;
  if (!program.plan.prologue.empty()) call.known = program.prologue->run(context.inputs, local, world_sums_);
  context.prologue = call.known.values;
  context.counts = call.known.counts;

  call.engine = std::make_shared<TorchEngine>(*program.runtime, std::move(context));
  if (call.loss_mode) {
    const auto loss = program.plan.outputs[static_cast<std::size_t>(program.plan.loss)].value;
    const auto& info = program.graph.value(loss);
    call.engine->add_sum_gradient(loss, at::full(sizes_at(info, call.batch), call.loss_scale,
                                                 at::TensorOptions().dtype(info.dtype).device(device_)));
    call.engine->start_gradients();
  }
  execute(call, call.loss_mode ? Phase::kStep : Phase::kForward);
  program.runtime->drop_casts();

  std::vector<at::Tensor> addends;
  const auto sums = global_sums(program.graph, program.plan);
  for (const auto& sum : sums) addends.push_back(call.engine->sum(sum.value));
  if (!sums.empty()) {
    const auto totals = world_sums_.sum(addends);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      call.sums[sums[i].value] = totals[i].to(program.graph.value(sums[i].value).dtype);
    }
  }
  update_buffers(call);
  if (!program.epilogue->empty()) {
    ShareContext whole = local;
    whole.samples = whole.batch;
    whole.first_sample = 0;
    whole.counts = &call.known.counts;
    call.tail = program.epilogue->run(call.sums, call.known.values, whole, call.differentiate);
  }
  uploaded_.wait();  // an optimizer on the host may step as soon as the call returns
}

void Session::Impl::execute(Call& call, Phase phase) {
  auto& program = *call.program;
  const bool reduce = phase != Phase::kForward && !call.accumulate;
  const auto& actions = program.actions(call.layout, *plan_, phase, reduce, world_.rank_id());
  ExecutorHooks hooks;
  hooks.fail = [this](std::string_view action, std::string_view message) { world_.fail(action, message); };
  if (!options_.trace_file.empty()) {
    if (phase != Phase::kBackward) {
      trace_.clear();
      trace_start_ = ExecutorHooks::Clock::now();
    }
    hooks.trace = [this](const Action& action, ExecutorHooks::Clock::time_point begin,
                         ExecutorHooks::Clock::time_point end) {
      const auto since_start = [this](ExecutorHooks::Clock::time_point time) {
        return Seconds(std::chrono::duration<double>(time - trace_start_).count());
      };
      trace_.push_back({world_.rank_id(), is_turn(action.kind) ? "compute" : "communication", describe(action), since_start(begin),
                        since_start(end)});
    };
  }
  Executor executor(*call.engine, wire_, program.groups, hooks, program.gather_groups);
  executor.run(actions);
  if (!options_.trace_file.empty()) write_trace();
}

void Session::Impl::write_trace() const {
  std::filesystem::path path = options_.trace_file;
  if (world_.size() > 1) {
    const auto ending = path.extension().string();
    path.replace_extension("." + std::to_string(world_.rank()) + ending);
  }
  write_chrome_trace(path, trace_);
}

std::vector<at::Tensor> Session::Impl::collect_results(Call& call) {
  std::vector<at::Tensor> results;
  for (const auto& output : call.program->plan.outputs) {
    const auto value = output.value;
    switch (output.kind) {
      case OutputKind::kBatched: results.push_back(call.engine->take_result(value)); break;
      case OutputKind::kPartialSum:
      case OutputKind::kReplicated: results.push_back(call.sums.at(value).clone()); break;
      case OutputKind::kEpilogue: results.push_back(call.tail->results.at(value).detach().clone()); break;
      case OutputKind::kPrologue:
        for (const auto& [known, tensor] : call.known.values) {
          if (known == value) results.push_back(tensor.clone());
        }
        break;
      case OutputKind::kInput: {
        const auto position = static_cast<std::size_t>(call.program->graph.value(value).position);
        results.push_back(call.arguments.tensors[position].clone());
        break;
      }
    }
  }
  return results;
}

// ---------------------------------------------------------------- loss mode

void Session::Impl::attach_loss_history(Call& call, std::vector<at::Tensor>& results) {
  const auto& plan = call.program->plan;
  const auto loss = static_cast<std::size_t>(plan.loss);
  auto gradients = gradients_of(call, {plan.outputs[loss].value});
  const auto arguments = call.arguments.tensors;
  auto of_inputs = input_gradients(call);
  const auto outcome = std::make_shared<StepOutcome>(unscale(call, gradients, of_inputs));
  std::vector<at::Tensor> roots{results[loss]};
  attach_history(roots, arguments,
                 [self = shared_from_this(), gradients = std::move(gradients), of_inputs = std::move(of_inputs), arguments,
                  accumulate = call.accumulate, outcome](const torch::autograd::variable_list& given, bool retain) {
                   const at::NoGradGuard no_grad;
                   torch::autograd::variable_list out(arguments.size());
                   if (!given[0].defined()) return out;
                   if (accumulate || !self->skips(*outcome)) self->apply(gradients, given[0], retain, accumulate);
                   for (std::size_t i = 0; i < out.size(); ++i) {
                     if (of_inputs[i].defined()) {
                       out[i] = like_argument(multiplied(of_inputs[i], given[0]), arguments[i]);
                     }
                   }
                   return out;
                 });
  results[loss] = roots[0];
}

std::vector<at::Tensor> Session::Impl::input_gradients(Call& call) {
  std::vector<at::Tensor> gradients(call.arguments.tensors.size());
  std::vector<std::size_t> shared;
  std::vector<at::Tensor> addends;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!call.program->inputs[i].requires_grad) continue;
    gradients[i] = call.engine->take_input_gradient(i);
    if (call.program->inputs[i].batch_dim) continue;
    shared.push_back(i);
    addends.push_back(gradients[i]);
  }
  if (shared.empty()) return gradients;
  const auto totals = world_sums_.sum(addends);
  for (std::size_t k = 0; k < shared.size(); ++k) gradients[shared[k]] = totals[k];
  return gradients;
}

// ---------------------------------------------------------------- output mode

void Session::Impl::attach_output_history(const std::shared_ptr<Call>& call, std::vector<at::Tensor>& results) {
  std::vector<std::size_t> outputs;
  std::vector<at::Tensor> roots;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& output = call->program->plan.outputs[i];
    if (!output.differentiable || output.kind == OutputKind::kInput || output.kind == OutputKind::kPrologue) continue;
    outputs.push_back(i);
    roots.push_back(results[i]);
  }
  if (roots.empty()) return;
  attach_history(roots, call->arguments.tensors,
                 [self = shared_from_this(), call, outputs](const torch::autograd::variable_list& given, bool retain) {
                   if (retain) {
                     throw InvalidArgument(
                         "backward(retain_graph = true) through results of an AutoParallel model is supported for a "
                         "single loss only, because the activations of other results are freed while they are used; add "
                         "up the losses and call backward once");
                   }
                   const auto headers = self->announce_backward(*call, given);
                   return self->guarded("backward", [&] { return self->backward_of_outputs(*call, outputs, given, headers); });
                 });
  for (std::size_t k = 0; k < outputs.size(); ++k) results[outputs[k]] = roots[k];
}

// What was called wrongly is no failure of a rank, of which the others would hear before they see for themselves.
std::vector<CallHeader> Session::Impl::announce_backward(const Call& call, const std::vector<at::Tensor>& gradients) {
  std::uint64_t mine = 0;
  for (std::size_t k = 0; k < gradients.size(); ++k) mine |= gradients[k].defined() ? 1ULL << (k % 64) : 0;
  auto header = next_header(CallKind::kBackward);
  header.accumulates = call.accumulate;
  header.word = mine;
  return exchange(world_, header, "");
}

std::vector<at::Tensor> Session::Impl::backward_of_outputs(Call& call, const std::vector<std::size_t>& outputs,
                                                           const std::vector<at::Tensor>& gradients,
                                                           const std::vector<CallHeader>& headers) {
  const at::NoGradGuard no_grad;
  const Tf32Scope tf32(options_.precision == "tf32", device_);
  std::uint64_t defined = 0;
  bool pending = false;
  for (const auto& other : headers) {
    defined |= other.word;
    pending = pending || other.has_pending;
  }
  call.engine->start_gradients();
  auto scaled = gradients;
  for (auto& gradient : scaled) {
    if (call.loss_scale != 1 && gradient.defined()) gradient = gradient.mul(call.loss_scale);
  }
  seed_output_gradients(call, outputs, scaled, defined);
  execute(call, Phase::kBackward);
  if (pending && !call.accumulate) reduce_pending();

  std::vector<ValueId> roots;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (defined & (1ULL << (k % 64))) roots.push_back(call.program->plan.outputs[outputs[k]].value);
  }
  const auto one = at::ones({}, at::TensorOptions().dtype(at::kDouble).device(device_));
  auto of_stages = gradients_of(call, roots);
  auto of_inputs = input_gradients(call);
  auto outcome = unscale(call, of_stages, of_inputs);
  if (call.accumulate || !skips(outcome)) apply(of_stages, one, false, call.accumulate);
  for (std::size_t i = 0; i < of_inputs.size(); ++i) {
    of_inputs[i] = like_argument(of_inputs[i], call.arguments.tensors[i]);
  }
  call.engine.reset();
  return of_inputs;
}

// A result that all ranks hold is one value of the concatenated program, however many copies of it there are: its
// gradient is the mean of theirs.
void Session::Impl::seed_output_gradients(Call& call, const std::vector<std::size_t>& outputs,
                                          const std::vector<at::Tensor>& gradients, std::uint64_t defined) {
  const auto& program = *call.program;
  std::vector<ValueId> global;
  std::vector<at::Tensor> addends;
  std::map<ValueId, bool> from_tail;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if ((defined & (1ULL << (k % 64))) == 0) continue;
    const auto& output = program.plan.outputs[outputs[k]];
    const auto& info = program.graph.value(output.value);
    auto gradient = gradients[k].defined() ? gradients[k].to(device_) : at::Tensor();
    if (output.kind == OutputKind::kBatched) {
      call.engine->add_result_gradient(output.value, gradient);
      continue;
    }
    const auto options = at::TensorOptions().dtype(info.dtype).device(device_);
    addends.push_back(gradient.defined() ? gradient : at::zeros(sizes_at(info, call.batch), options));
    addends.push_back(gradient.defined() ? at::ones({}, options) : at::zeros({}, options));
    global.push_back(output.value);
    from_tail[output.value] = output.kind == OutputKind::kEpilogue;
  }
  if (global.empty()) return;
  const auto totals = world_sums_.sum(addends);
  std::map<ValueId, at::Tensor> of_tail;
  for (std::size_t g = 0; g < global.size(); ++g) {
    auto mean = totals[2 * g].div(totals[2 * g + 1]);
    if (!from_tail[global[g]]) {
      call.engine->add_sum_gradient(global[g], std::move(mean));
      continue;
    }
    auto& sum = of_tail[global[g]];
    sum = sum.defined() ? sum.add(mean) : std::move(mean);
  }
  if (of_tail.empty()) return;
  for (auto& [value, gradient] : Epilogue::gradients(*call.tail, of_tail, false)) {
    call.engine->add_sum_gradient(value, gradient);
  }
}

}  // namespace autopar
