#include "torch/engine/torch_engine.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <autopar/core/assert.hpp>

#include "shard/tensor_buffer.hpp"

namespace autopar::engine {

TorchEngine::TorchEngine(RankRuntime& runtime, CallContext context)
    : runtime_(runtime),
      context_(std::move(context)),
      messages_(runtime, context_),
      edges_(runtime, context_, messages_),
      gradients_(runtime) {
  if (const auto* const weights = runtime_.fp8_weights(); weights != nullptr && context_.differentiate) {
    for (const int group : weights->groups()) {
      in_8_bits_[group];
      weights->add_gathered(group, context_.copies);
    }
    weights->add_kept(context_.copies);
  }
  for (const auto& stage : runtime_.stages()) runs_.emplace_back(*stage, context_);
}

void TorchEngine::add_sum_gradient(ValueId value, at::Tensor gradient) {
  auto& sum = sum_gradients_[value];
  sum = sum.defined() ? sum.add(gradient) : std::move(gradient);
}

StageExecution& TorchEngine::run_of(StageId stage) {
  const auto found = std::find_if(runs_.begin(), runs_.end(), [&](auto& run) { return run.stage().stage() == stage; });
  AUTOPAR_ASSERT(found != runs_.end(), "a rank is told to run a stage that it does not have");
  return *found;
}

// ---------------------------------------------------------------- compute actions

StageExecution& TorchEngine::begin_compute(const Action& action) {
  for (auto& run : runs_) run.release_sent();
  auto& run = run_of(action.stage);
  run.stage().set_gate({.gate = gate_, .backward = action.kind != ActionKind::kForward});
  return run;
}

void TorchEngine::forward(const Action& action) { begin_compute(action).forward(action); }

void TorchEngine::backward(const Action& action) {
  auto& run = begin_compute(action);
  const bool last = run.is_last_backward();
  gradients_.expect(run.stage());
  run_backward(run, action, last);
  run_deferred(run, action, last);
  gradients_.report_rest(run.stage());
}

void TorchEngine::backward_input(const Action& action) { run_backward(begin_compute(action), action, false); }

void TorchEngine::backward_weight(const Action& action) {
  auto& run = begin_compute(action);
  const bool last = run.is_last_backward();
  gradients_.expect(run.stage());
  for (const auto parameter : run.stage().parameters()) {
    if (!run.stage().defers(parameter)) gradients_.complete(parameter, last);
  }
  run_deferred(run, action, last);
  gradients_.report_rest(run.stage());
}

void TorchEngine::run_backward(StageExecution& run, const Action& action, bool last) {
  const c10::impl::ExcludeDispatchKeyGuard as_in_forward(c10::autocast_dispatch_keyset);  // casts are operators
  auto& stage = run.stage();
  auto roots = run.begin_backward(action, sum_gradients_);
  for (const auto& value : roots.values) retired_.push_back(value.grad_fn());
  const bool gives_weights = gives_weight_gradients(action.kind);
  if (gives_weights && (gradients_.sums_in_some_computes() || last)) {
    stage.on_gradient([this, &stage, last](ValueId parameter) {
      if (!stage.defers(parameter)) gradients_.take(stage, parameter, last);
    });
  }
  if (!roots.values.empty()) {
    gradients_.bind(stage);
    stage.backward(std::move(roots.values), std::move(roots.gradients));
    gradients_.unbind(stage);
  }
  stage.on_gradient({});
  run.end_backward(action);
}

// Deferred gradients are added last, so a bucket is ready only then.
void TorchEngine::run_deferred(StageExecution& run, const Action& action, bool last) {
  auto* deferred = run.deferred(action);
  if (deferred == nullptr) return;
  const c10::impl::ExcludeDispatchKeyGuard as_in_forward(c10::autocast_dispatch_keyset);
  auto& stage = run.stage();
  std::set<ValueId> added;
  const auto add = [&](ValueId parameter, at::Tensor gradient) {
    added.insert(parameter);
    gradients_.add(stage, parameter, std::move(gradient), last);
  };
  const auto sum_of = [&](ValueId parameter) { return gradients_.growing_sum(stage, parameter); };
  // The formulas of weight gradients read the weights, too.
  deferred->compute(
      add, [this](const std::vector<ValueId>& parameters) { gradients_.unshard(parameters); }, sum_of);
  for (const auto parameter : stage.parameters()) {
    if (!stage.defers(parameter) || added.count(parameter) > 0) continue;
    gradients_.complete(parameter, last);  // with gradients that autograd added
  }
}

// ---------------------------------------------------------------- messages

Buffer TorchEngine::pack(const Action& action) {
  const at::NoGradGuard no_grad;
  const auto& channel = messages_.channel(action);
  const auto stage = action.flow == Flow::kValue ? channel.from : channel.to;
  const bool becomes_result = channel.to == kSink && action.flow == Flow::kValue && action.peer == context_.rank;
  std::vector<at::Tensor> parts;
  for (const auto value : messages_.values(action)) {
    if (!stage.valid())
      parts.push_back(edges_.pack(action, value));
    else if (becomes_result)
      parts.push_back(run_of(stage).pack_result(action, channel, value, messages_.local_samples()));
    else
      parts.push_back(run_of(stage).pack(action, channel, value));
  }
  const auto forms = messages_.forms(action);
  if (action.peer != context_.rank) return pack_tensors(parts, forms, runtime_.device());
  // Autograd expands some gradients, which must not be written. Results need the strides that callers expect.
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (action.flow == Flow::kGradient || becomes_result) parts[i] = ir::in_form(parts[i], forms[i]);
  }
  return hand_over(std::move(parts));
}

Buffer TorchEngine::receive_buffer(const Action& action) {
  return make_receive_buffer(messages_.forms(action), runtime_.device());
}

void TorchEngine::accept(const Action& action, const Buffer& buffer) {
  const at::NoGradGuard no_grad;
  const auto& channel = messages_.channel(action);
  const auto& values = messages_.values(action);
  const bool travelled = action.peer != context_.rank;
  auto pieces = travelled ? unpack_tensors(buffer, messages_.forms(action)) : handed_over(buffer);
  const auto stage = action.flow == Flow::kValue ? channel.to : channel.from;
  if (travelled && !stage.valid()) {
    for (auto& piece : pieces) piece = pieces.size() == 1 ? ir::with_own_version(piece) : piece.clone();
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (stage.valid())
      run_of(stage).unpack(action, channel, values[i], pieces[i]);
    else
      edges_.unpack(action, values[i], pieces[i]);
  }
}

Buffer TorchEngine::gathering(const Action& action) {
  ++unsharded_[action.group];
  const auto in_8_bits = in_8_bits_.find(action.group);
  if (in_8_bits != in_8_bits_.end())
    return buffer_of(in_8_bits->second.emplace_back(runtime_.fp8_weights()->shards_of(action.group).pack()));
  auto& memory = *runtime_.shards_of(action.group);
  memory.allocate();
  return buffer_of(memory.whole());
}

// In 16 bits compute copies lie in that memory.
void TorchEngine::gathered(const Action& action) {
  const auto in_8_bits = in_8_bits_.find(action.group);
  if (in_8_bits == in_8_bits_.end()) return;
  auto& messages = in_8_bits->second;  // gathers of a group end in the order in which they begin
  runtime_.fp8_weights()->shards_of(action.group).unpack(messages.front());
  messages.pop_front();
}

void TorchEngine::reshard(const Action& action) {
  if (--unsharded_[action.group] > 0) return;
  if (in_8_bits_.contains(action.group))
    runtime_.fp8_weights()->shards_of(action.group).release();
  else
    runtime_.shards_of(action.group)->release();
}

// ---------------------------------------------------------------- results

at::Tensor TorchEngine::sum(ValueId value) const {
  for (const auto& run : runs_) {
    if (auto total = run.sum(value); total.defined()) return total;
  }
  const auto& info = runtime_.graph().value(value);
  return at::zeros(ir::sizes_at(info, context_.batch),
                   ir::options_of(info, runtime_.device()).dtype(autograd::sum_type(info.dtype)));
}

std::vector<interpret::NormSample> TorchEngine::norm_samples(std::size_t batch_norm) const {
  std::vector<interpret::NormSample> samples;
  for (const auto& run : runs_) run.add_norm_samples(batch_norm, samples);
  return samples;
}

std::vector<at::Tensor> TorchEngine::buffer_results(ValueId result) const {
  std::vector<at::Tensor> results;
  for (const auto& run : runs_) run.add_buffer_results(result, results);
  return results;
}

}  // namespace autopar::engine
