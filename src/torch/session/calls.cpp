#include "torch/session/session_impl.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <numeric>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <autopar/core/error.hpp>
#include <autopar/plan/text.hpp>
#include <autopar/runtime/executor.hpp>

#include "capture/replay/plain_message.hpp"
#include "torch/device/tf32_scope.hpp"

namespace autopar::session {

namespace {

bool any_differentiable(const algebra::BatchSemantics& plan) {
  for (const auto& output : plan.outputs) {
    if (output.differentiable && output.kind != algebra::OutputKind::kInput) return true;
  }
  return false;
}

std::vector<std::uint64_t> words_of(const std::vector<CallHeader>& headers) {
  std::vector<std::uint64_t> words;
  for (const auto& header : headers) words.push_back(header.word);
  return words;
}

}  // namespace

CallHeader Impl::next_header(CallKind kind) {
  if (in_whole_function_) {
    throw InvalidArgument(
        std::string(name_of(kind)) +
        ": it was called within a function of for_whole_parameters, which runs on one rank, and needs "
        "all; call it before or after");
  }
  CallHeader header;
  header.kind = kind;
  header.model = model_number_;
  module_->name().copy(header.model_name.data(), header.model_name.size() - 1);
  header.serial = static_cast<std::uint64_t>(stats_.calls);
  header.accumulates = accumulating_ && (kind == CallKind::kForward || kind == CallKind::kBackward);
  header.has_pending = gradients_.has_accumulated();
  header.loss_backwards = std::exchange(loss_backwards_, 0);
  header.loss_factors = std::exchange(loss_factors_, 0);
  header.loss_scale = scaler_ ? scaler_->scale() : 1;
  if (kind != CallKind::kForward) return header;
  header.optimizers = watch_.look();
  const auto changed = unattached_.look();
  const auto& tensors = parameters_.tensors();
  const auto found = std::ranges::find_if(
      tensors, [&](const parameters::StateTensor& tensor) { return tensor.handle.is_same(changed); });
  if (changed.defined() && found != tensors.end())
    header.unattached = static_cast<std::int32_t>(found - tensors.begin());
  return header;
}

void Impl::warn_of_unattached(const std::vector<CallHeader>& headers) {
  const auto seen = std::ranges::find_if(headers, [](const CallHeader& header) { return header.unattached >= 0; });
  if (seen == headers.end() || std::exchange(warned_of_unattached_, true) || world_.rank() != 0) return;
  const auto& tensor = parameters_.tensors()[static_cast<std::size_t>(seen->unattached)];
  log_.warn("parameter '" + tensor.name() +
            "' was changed after it got a gradient, and no attached optimizer has it; if an optimizer steps it, call "
            "model->attach(optimizer) when it is made: plans then count its state, may shard it (ZeRO, tensor slices, "
            "offload), and a rank that steps otherwise than the others is noticed. Until then plans assume "
            "optimizer_state_factor = " +
            detail::formatted("%g", options_.optimizer_state_factor));
}

CallResult Impl::call(const Flattened& arguments, const ForwardFunction& forward) {
  const auto start = std::chrono::steady_clock::now();
  resolve_once();
  const devices::Tf32Scope tf32(options_.precision == "tf32", deployment_.device());
  const at::AutoGradMode gradients(at::GradMode::is_enabled() && !options_.inference);
  if (options_.plan_only) {
    prepare(arguments, forward);
    world_.expect_exception();
    const auto message = "plan_only is set, so the model is planned" +
                         (options_.plan_file.empty() ? "" : " (see '" + options_.plan_file + "')") +
                         " and not run; unset it to train";
    if (world_.rank() == 0) log_.warn(message);
    throw PlanOnly(message, world_.rank_id());
  }
  const auto call = std::make_shared<Call>();
  const auto error = inspect(arguments, call->arguments);
  auto key = capture_key(call->arguments);
  auto header = next_header(CallKind::kForward);
  const auto own_key = key + format_key(call->arguments);
  const auto known = programs_.peek(own_key);
  if (known == nullptr || known->verification.calls < LocalIndexWatch::kCalls)
    header.local_indices = local_indices_.look(call->arguments, options_);
  header.needs_capture = programs_.is_stale(own_key);
  header.members_changed = members_changed(own_key, call->arguments);
  header.word = formats_of(call->arguments);
  header.shared = call->arguments.shared;
  header.samples = call->arguments.has_batch ? call->arguments.samples : (world_.rank() == 0 ? 1 : 0);
  if (at::GradMode::is_enabled()) call->region = region_behind(call->arguments.tensors, call->arguments.own());
  const auto common = call->region ? call->region->common_ends() : 0;
  const auto behind = common == 0 ? "" : "; from " + std::to_string(common) + " results that all ranks have";
  const auto outside = outside_.look();
  header.outside_gradients = static_cast<std::int64_t>(outside.size());
  const auto headers = exchange(world_, header, key + behind, error, [&] {
    auto words = call_words(call->arguments);
    const auto count = std::to_string(common);
    words.push_back({"", "takes", count, count + " tensors that follow from results that all ranks have"});
    return words;
  });
  require_same_optimizers(world_, headers, [this](std::size_t k) { return watch_.describe(k); });
  if (std::ranges::any_of(headers, [](const CallHeader& each) { return each.outside_gradients != 0; }))
    require_same_outside_gradients(world_, parameters_, outside);
  warn_of_unattached(headers);
  if (deployed_) verify_replicas();
  open(*call, headers);
  count_in_global_batch(call->arguments, options_, first_sample_of(call->layout));
  agree_on_formats(call->arguments, words_of(headers));
  key += format_key(call->arguments);
  bool capture_again = !programs_.knows(key), changed = false, pending = false;
  for (const auto& other : headers) {
    capture_again = capture_again || other.needs_capture;
    changed = changed || other.members_changed;
    pending = pending || other.has_pending;
  }
  if (!capture_again) capture_again = is_outdated(*programs_.find(key), call->arguments, forward, changed);
  if (capture_again) capture_and_deploy(call->arguments, key, call->batch, forward);
  call->program = programs_.find(key);
  local_indices_.warn(headers, call->arguments, *call->program, world_.rank() == 0 ? log_ : Logger());
  auto& verification = call->program->verification;
  ++verification.calls;
  if (capture_again) verification.agreed = verification.calls;
  call->layout.microbatches = deployment_.plan().microbatches;
  require_statistics(*call);
  check_memory(*call->program, call->batch);
  verify_sizes(*call->program, call->arguments, forward, call->layout);
  call->accumulate = header.accumulates;
  find_mode(*call);
  call->draws = {seed_, static_cast<std::uint64_t>(stats_.calls)};

  return guarded("forward", [&] {
    run_step(call);
    if (pending && !call->accumulate) reduce_accumulated();
    auto results = collect_results(*call);
    if (call->loss_mode)
      attach_loss_history(*call, results);
    else if (call->differentiate)
      attach_output_history(call, results);
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

/// What is wrong with them, if something is.
std::exception_ptr Impl::inspect(const Flattened& arguments, CallArguments& inspected) const {
  try {
    inspected = inspect_arguments(arguments, options_);
    require_local_indices(inspected, options_);
    return nullptr;
  } catch (const Error&) {
    return std::current_exception();
  }
}

std::vector<CallWord> Impl::call_words(const CallArguments& arguments) const {
  std::string autocast;
  for (const auto type : {at::kCPU, at::kCUDA}) {
    if (at::autocast::is_autocast_enabled(type)) autocast += " " + c10::DeviceTypeName(type);
  }
  return words_of_call(arguments, *module_, parameters_.tensors(), at::GradMode::is_enabled(), autocast);
}

void Impl::open(Call& call, const std::vector<CallHeader>& headers) {
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

/// Where this rank's samples begin in the global batch.
std::int64_t Impl::first_sample_of(const BatchLayout& layout) const {
  return std::accumulate(layout.local.begin(), layout.local.begin() + world_.rank(), std::int64_t{0});
}

void Impl::prepare(const Flattened& arguments, const ForwardFunction& forward) {
  resolve_once();
  const devices::Tf32Scope tf32(options_.precision == "tf32", deployment_.device());
  const at::AutoGradMode gradients(at::GradMode::is_enabled() && !options_.inference);
  Call call;
  const auto error = inspect(arguments, call.arguments);
  auto key = capture_key(call.arguments);
  auto header = next_header(CallKind::kPrepare);
  header.shared = call.arguments.shared;
  header.samples = call.arguments.has_batch ? call.arguments.samples : (world_.rank() == 0 ? 1 : 0);
  header.needs_capture = programs_.is_stale(key + format_key(call.arguments));
  header.word = formats_of(call.arguments);
  const auto headers = exchange(world_, header, key, error, [&] { return call_words(call.arguments); });
  open(call, headers);
  agree_on_formats(call.arguments, words_of(headers));
  key += format_key(call.arguments);
  bool capture_again = !programs_.knows(key);
  for (const auto& other : headers) capture_again = capture_again || other.needs_capture;
  if (capture_again) capture_and_deploy(call.arguments, key, call.batch, forward);
}

// ---------------------------------------------------------------- running

void Impl::find_mode(Call& call) const {
  const auto& plan = call.program->plan;
  call.differentiate = at::GradMode::is_enabled() && any_differentiable(plan);
  call.loss_mode = call.differentiate && plan.loss_mode;
  if (call.differentiate && scaler_) call.loss_scale = scaler_->scale();
}

void Impl::run_forward(Call& call) {
  auto& program = *call.program;
  program.runtime->refresh_leaves();
  parameters_.upload();
  if (call.differentiate) warn_of_second_gradients();
  if (call.inputs.empty()) {
    for (const auto& tensor : call.arguments.tensors) call.inputs.push_back(tensor.detach().to(deployment_.device()));
  }

  const BatchSplit split(program.runtime->pipeline(), call.layout);
  engine::CallContext context{split, world_.rank_id(), call.batch, call.draws, call.differentiate, call.inputs, {}, {}};

  interpret::SliceContext local;
  local.samples = call.layout.local[world_.rank_id().index()];
  local.batch = call.batch;
  local.first_sample = first_sample_of(call.layout);
  local.draws = context.draws;
  if (!program.plan.prologue.empty()) call.known = program.prologue->run(context.inputs, local, deployment_.sums());
  context.prologue = call.known.values;
  context.counts = call.known.counts;

  call.engine = std::make_shared<engine::TorchEngine>(*program.runtime, std::move(context));
  if (call.loss_mode) {
    const auto loss = program.plan.outputs[static_cast<std::size_t>(program.plan.loss)].value;
    call.engine->add_sum_gradient(loss, program.loss_gradient(call.loss_scale, deployment_.device()));
    call.engine->start_gradients();
  }
  execute(call, call.loss_mode ? Phase::kStep : Phase::kForward);
  program.runtime->drop_casts();

  std::vector<at::Tensor> addends;
  const auto sums = algebra::global_sums(program.graph, program.plan);
  for (const auto& sum : sums) addends.push_back(call.engine->sum(sum.value));
  if (!sums.empty()) {
    const auto totals = deployment_.sums().sum(addends);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      call.sums[sums[i].value] = totals[i].to(program.graph.value(sums[i].value).dtype);
    }
  }
  if (!program.epilogue->empty()) {
    interpret::SliceContext whole = local;
    whole.samples = whole.batch;
    whole.first_sample = 0;
    whole.counts = &call.known.counts;
    auto known = call.known.values;
    for (const auto buffer : program.plan.prologue_leaves) {  // as they are before this call, and not to be written
      known.emplace_back(buffer, handle_of(program.graph, buffer).detach().clone());
    }
    call.tail = program.epilogue->run(call.sums, known, whole, call.differentiate);
  }
  if (!std::exchange(call.has_updated_buffers, true)) update_buffers(call);
  parameters_.wait_for_upload();  // an optimizer on the host may step as soon as the call returns
}

void Impl::execute(Call& call, Phase phase) {
  auto& program = *call.program;
  const bool reduce = phase != Phase::kForward && !call.accumulate;
  const auto& actions = program.actions(call.layout, deployment_.plan(), phase, reduce, world_.rank_id());
  ExecutorHooks hooks;
  hooks.fail = [&](std::string_view action, std::string_view message) {
    if (!call.may_fail) world_.fail(action, message);
  };
  hooks.message = replay::plain_message;
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
      trace_.push_back({world_.rank_id(), is_compute(action.kind) ? "compute" : "communication", describe(action),
                        since_start(begin), since_start(end)});
    };
  }
  Executor executor(*call.engine, deployment_.wire(), {program.groups, program.gather_groups, program.tensor_groups},
                    hooks);
  executor.run(actions);
  if (options_.trace_file.empty()) return;
  files_.write("trace_file", [&] {
    write_chrome_trace(trace_path(), trace_, deployment_.plan().model, planning::overwrite_of(options_));
  });
}

std::filesystem::path Impl::trace_path() const {
  std::filesystem::path path = options_.trace_file;
  if (world_.size() == 1 || path.empty()) return path;
  const auto ending = path.extension().string();
  return path.replace_extension("." + std::to_string(world_.rank()) + ending);
}

std::vector<at::Tensor> Impl::collect_results(Call& call) {
  if (!call.made_results.empty()) return std::move(call.made_results);
  std::vector<at::Tensor> results;
  for (const auto& output : call.program->plan.outputs) {
    const auto value = output.value;
    switch (output.kind) {
      case algebra::OutputKind::kBatched:
        results.push_back(call.engine->take_result(value));
        break;
      case algebra::OutputKind::kPartialSum:
      case algebra::OutputKind::kReplicated:
        results.push_back(call.sums.at(value).clone());
        break;
      case algebra::OutputKind::kEpilogue:
        results.push_back(call.tail->results.at(value).detach().clone());
        break;
      case algebra::OutputKind::kPrologue:
        for (const auto& [known, tensor] : call.known.values) {
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

}  // namespace autopar::session
