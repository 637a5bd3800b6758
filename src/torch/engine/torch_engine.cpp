#include "torch/engine/torch_engine.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>

#include "shard/tensor_buffer.hpp"

namespace autopar::engine {

TorchEngine::TorchEngine(RankRuntime& runtime, CallContext context) : runtime_(runtime), context_(std::move(context)) {
  for (const auto& stage : runtime_.stages()) runs_.emplace_back(*stage, context_);
}

void TorchEngine::add_sum_gradient(ValueId value, at::Tensor gradient) {
  auto& sum = sum_gradients_[value];
  sum = sum.defined() ? sum.add(gradient) : std::move(gradient);
}

void TorchEngine::add_result_gradient(ValueId value, at::Tensor gradient) {
  if (!gradient.defined()) return;
  auto& sum = result_gradients_[value];
  sum = sum.defined() ? sum.add(gradient) : std::move(gradient);
}

void TorchEngine::start_gradients() {
  const auto groups = runtime_.bucket_layouts().size();
  buckets_.clear();
  buckets_.resize(groups);
  shares_.assign(groups, at::Tensor());
  on_their_way_.assign(groups, {});
  gradients_.assign(runtime_.parameters().size(), at::Tensor());
  for (std::size_t group = 0; group < groups; ++group) {
    const int number = static_cast<int>(group);
    if (!runtime_.in_group(number)) continue;
    const auto& layout = runtime_.bucket_layouts()[group];
    const bool in_computes = runtime_.zero_of(number) >= 2;
    sums_in_some_computes_ = sums_in_some_computes_ || in_computes;
    if (in_computes) {
      const auto& unit = runtime_.shards_of(number)->unit();
      shares_[group] = at::zeros({unit.part()}, at::TensorOptions().dtype(unit.dtype).device(runtime_.device()));
    } else {
      buckets_[group] = std::make_unique<parameters::GradientBuckets>(layout, runtime_.device());
    }
    for (std::size_t i = 0; i < layout.places().size(); ++i) {
      const auto& place = layout.places()[i];
      const auto parameter = ValueId::of(place.form.key);
      if (!in_computes) gradients_[runtime_.position_of(parameter)] = buckets_[group]->views()[i];
      bucket_of_[parameter] = {number, place.bucket};
      place_of_[parameter] = i;
    }
  }
  for (auto& run : runs_) {
    for (const auto parameter : run.stage().parameters()) {
      const auto bucket = bucket_of_.find(parameter);
      if (bucket != bucket_of_.end() && !sums_in_computes(parameter)) ++missing_[bucket->second];
    }
  }
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
  expect_gradients(run.stage());
  run_backward(run, action, last);
  run_deferred(run, action, last);
  report_rest(run.stage());
}

void TorchEngine::backward_input(const Action& action) { run_backward(begin_compute(action), action, false); }

void TorchEngine::backward_weight(const Action& action) {
  auto& run = begin_compute(action);
  const bool last = run.is_last_backward();
  expect_gradients(run.stage());
  for (const auto parameter : run.stage().parameters()) {
    if (run.stage().defers(parameter)) continue;
    if (sums_in_computes(parameter)) move_into_bucket(parameter);
    if (is_complete(parameter, last)) count_down(parameter);
  }
  run_deferred(run, action, last);
  report_rest(run.stage());
}

void TorchEngine::run_backward(StageExecution& run, const Action& action, bool last) {
  const c10::impl::ExcludeDispatchKeyGuard as_in_forward(c10::autocast_dispatch_keyset);  // casts are operators
  auto& stage = run.stage();
  auto roots = run.begin_backward(action, sum_gradients_);
  for (const auto& value : roots.values) spent_.push_back(value.grad_fn());
  const bool gives_weights = gives_weight_gradients(action.kind);
  if (gives_weights && (sums_in_some_computes_ || last)) {
    stage.on_gradient([this, &stage, last](ValueId parameter) {
      if (stage.defers(parameter)) return;
      if (sums_in_computes(parameter)) take_gradient(stage, parameter);
      if (is_complete(parameter, last)) count_down(parameter);
    });
  }
  if (!roots.values.empty()) {
    bind_gradients(stage);
    stage.backward(std::move(roots.values), std::move(roots.gradients));
    unbind_gradients(stage);
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
    if (gradient.defined()) add_gradient(stage, parameter, std::move(gradient));
    if (sums_in_computes(parameter)) move_into_bucket(parameter);
    added.insert(parameter);
    if (is_complete(parameter, last)) count_down(parameter);
  };
  const auto sum_of = [&](ValueId parameter) {
    const auto& sum = gradients_[runtime_.position_of(parameter)];
    const bool takes_more =
        sum.defined() && sum.is_contiguous() && sum.scalar_type() == stage.compute_copy(parameter).scalar_type();
    return takes_more ? sum : at::Tensor();
  };
  // The formulas of weight gradients read the weights, too.
  deferred->compute(
      add, [this](const std::vector<ValueId>& parameters) { unshard(parameters); }, sum_of);
  for (const auto parameter : stage.parameters()) {
    if (!stage.defers(parameter) || added.count(parameter) > 0) continue;
    if (sums_in_computes(parameter)) move_into_bucket(parameter);  // gradients that autograd added
    if (is_complete(parameter, last)) count_down(parameter);
  }
}

void TorchEngine::unshard(const std::vector<ValueId>& parameters) {
  for (const auto parameter : parameters) {
    const auto bucket = bucket_of_.find(parameter);
    if (bucket != bucket_of_.end()) gate_->unshard(bucket->second.first, bucket->second.second);
  }
}

// ---------------------------------------------------------------- reductions into shards within compute actions

bool TorchEngine::sums_in_computes(ValueId parameter) const {
  if (!sums_in_some_computes_) return false;
  const auto bucket = bucket_of_.find(parameter);
  return bucket != bucket_of_.end() && runtime_.zero_of(bucket->second.first) >= 2;
}

/// Whether the gradients of a parameter's bucket are complete after this compute action.
bool TorchEngine::is_complete(ValueId parameter, bool last) const { return last || sums_in_computes(parameter); }

/// Every compute action that computes weight gradients fills the buckets that are reduced within it.
void TorchEngine::expect_gradients(const Stage& stage) {
  for (const auto parameter : stage.parameters()) {
    if (!sums_in_computes(parameter)) continue;
    missing_[bucket_of_.at(parameter)] = 0;
    summed_.erase(bucket_of_.at(parameter).first);
  }
  for (const auto parameter : stage.parameters()) {
    if (sums_in_computes(parameter)) ++missing_[bucket_of_.at(parameter)];
  }
}

/// Adds gradients that the compute action did not report, or that came in an unknown order.
void TorchEngine::report_rest(const Stage& stage) {
  for (const auto parameter : stage.parameters()) {
    if (sums_in_computes(parameter)) move_into_bucket(parameter);
  }
}

/// Takes the gradient that autograd has just added to the compute copy.
void TorchEngine::take_gradient(Stage& stage, ValueId parameter) {
  gradients_[runtime_.position_of(parameter)] = std::move(stage.compute_copy(parameter).mutable_grad());
  move_into_bucket(parameter);
}

void TorchEngine::move_into_bucket(ValueId parameter) {
  auto& gradient = gradients_[runtime_.position_of(parameter)];
  if (!gradient.defined()) return;
  const at::NoGradGuard no_grad;
  const auto group = static_cast<std::size_t>(bucket_of_.at(parameter).first);
  if (summed_.count(bucket_of_.at(parameter).first) > 0) {
    throw InvalidArgument(
        "the gradient of parameter '" + runtime_.graph().value(parameter).name +
        "' came later in its backward than the operators that read it say, when its part was summed; set zero = 1");
  }
  auto& buckets = buckets_[group];
  if (buckets == nullptr)
    buckets = std::make_unique<parameters::GradientBuckets>(runtime_.bucket_layouts()[group], runtime_.device());
  buckets->views()[place_of_.at(parameter)].add_(gradient);
  gradient.reset();
}

void TorchEngine::add_gradient(const Stage& stage, ValueId parameter, at::Tensor gradient) {
  auto& sum = gradients_[runtime_.position_of(parameter)];
  const auto& variable = stage.compute_copy(parameter);
  if (gradient.scalar_type() != variable.scalar_type()) gradient = gradient.to(variable.scalar_type());
  if (sum.defined()) {
    sum.add_(gradient);
  } else if (torch::autograd::utils::obeys_layout_contract(gradient, variable)) {
    sum = std::move(gradient);
  } else {
    sum = torch::autograd::utils::clone_obey_contract(gradient, variable);
  }
}

void TorchEngine::count_down(ValueId parameter) {
  const auto found = bucket_of_.find(parameter);
  if (found == bucket_of_.end() || --missing_[found->second] > 0) return;
  const auto [group, bucket] = found->second;
  gate_->reshard(group, bucket);  // all readers of its parameters have run
  gate_->gradients_ready(group, bucket);
}

// Another call's backward may run between two backwards of this call, so compute copies have gradients only while one
// runs.
void TorchEngine::bind_gradients(Stage& stage) {
  for (const auto parameter : stage.parameters()) {
    stage.compute_copy(parameter).mutable_grad() = gradients_[runtime_.position_of(parameter)];
  }
}

// Autograd stores the first gradient without copying it. With one sample, the gradient of p in x + p.unsqueeze(0) is a
// view of x's gradient. Further gradients are added in place, so the memory must not be shared: deferred gradients, or
// gradients that are being sent, would change.
void TorchEngine::unbind_gradients(Stage& stage) {
  for (const auto parameter : stage.parameters()) {
    auto& sum = gradients_[runtime_.position_of(parameter)];
    const bool is_first = !sum.defined();
    sum = std::move(stage.compute_copy(parameter).mutable_grad());
    if (is_first && sum.defined() && sum.has_storage() && sum.storage().use_count() > 1) sum = sum.clone();
  }
}

// ---------------------------------------------------------------- messages

const Channel& TorchEngine::channel_of(const Action& action) const {
  return runtime_.pipeline().channels[static_cast<std::size_t>(action.channel)];
}

const std::vector<ValueId>& TorchEngine::message_values(const Action& action) const {
  const auto& program = runtime_.program();
  const auto channel = static_cast<std::size_t>(action.channel);
  return action.flow == Flow::kValue ? program.channel_values[channel] : program.channel_gradients[channel];
}

std::vector<ir::TensorForm> TorchEngine::message_forms(const Action& action) const {
  std::vector<ir::TensorForm> forms;
  // A value that is sent whole and whose size depends on the batch belongs to all samples: an operator mixed them.
  const auto samples = channel_of(action).kind == ChannelKind::kBatched ? action.samples.size() : context_.batch;
  for (const auto value : message_values(action)) {
    forms.push_back(ir::form_of(runtime_.graph().value(value), samples));
  }
  return forms;
}

std::int64_t TorchEngine::local_samples() const {
  return context_.split.local(context_.rank, context_.split.microbatches() - 1).end;
}

Interval TorchEngine::within_local(const Action& action) const {
  const auto& split = context_.split;
  const auto shift =
      split.local(context_.rank, action.microbatch).begin - split.piece(context_.rank, action.microbatch).begin;
  return {action.samples.begin + shift, action.samples.end + shift};
}

Buffer TorchEngine::pack(const Action& action) {
  const at::NoGradGuard no_grad;
  const auto& channel = channel_of(action);
  const auto stage = action.flow == Flow::kValue ? channel.from : channel.to;
  const bool becomes_result = channel.to == kSink && action.flow == Flow::kValue && action.peer == context_.rank;
  std::vector<at::Tensor> parts;
  for (const auto value : message_values(action)) {
    if (!stage.valid())
      parts.push_back(departing_from_edge(action, channel, value));
    else if (becomes_result)
      parts.push_back(run_of(stage).departing_result(action, channel, value, local_samples()));
    else
      parts.push_back(run_of(stage).departing(action, channel, value));
  }
  const auto forms = message_forms(action);
  if (action.peer != context_.rank) return pack_tensors(parts, forms, runtime_.device());
  // Autograd expands some gradients, which must not be written. Results need the strides that callers expect.
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (action.flow == Flow::kGradient || becomes_result) parts[i] = ir::in_form(parts[i], forms[i]);
  }
  return hand_over(std::move(parts));
}

at::Tensor TorchEngine::departing_from_edge(const Action& action, const Channel& channel, ValueId value) {
  const auto& info = runtime_.graph().value(value);
  const auto& local =
      action.flow == Flow::kValue ? context_.inputs[static_cast<std::size_t>(info.position)] : result_gradients_[value];
  if (!local.defined())
    return at::zeros(ir::sizes_at(info, action.samples.size()), ir::options_of(info, runtime_.device()));
  if (channel.kind != ChannelKind::kBatched) return local;
  return samples_of(local, runtime_.plan().type(value), local_samples(), within_local(action));
}

Buffer TorchEngine::receive_buffer(const Action& action) {
  return make_receive_buffer(message_forms(action), runtime_.device());
}

void TorchEngine::accept(const Action& action, const Buffer& buffer) {
  const at::NoGradGuard no_grad;
  const auto& channel = channel_of(action);
  const auto& values = message_values(action);
  const bool travelled = action.peer != context_.rank;
  auto pieces = travelled ? unpack_tensors(buffer, message_forms(action)) : handed_over(buffer);
  const auto stage = action.flow == Flow::kValue ? channel.to : channel.from;
  if (travelled && !stage.valid()) {
    for (auto& piece : pieces) piece = pieces.size() == 1 ? ir::with_own_version(piece) : piece.clone();
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (stage.valid())
      run_of(stage).arrive(action, channel, values[i], pieces[i]);
    else
      arrive_at_edge(action, channel, values[i], pieces[i]);
  }
}

void TorchEngine::arrive_at_edge(const Action& action, const Channel& channel, ValueId value, const at::Tensor& piece) {
  auto& target = action.flow == Flow::kValue ? results_[value] : input_gradients_[value];
  if (channel.kind != ChannelKind::kBatched) {
    target.add(piece);
    return;
  }
  const auto whole = local_samples();
  target.put(piece, runtime_.plan().type(value), ir::form_of(runtime_.graph().value(value), whole), whole,
             within_local(action), action.flow == Flow::kValue ? Into::kWrite : Into::kAdd);
}

Buffer TorchEngine::bucket(const Action& action) {
  const auto group = static_cast<std::size_t>(action.group);
  auto& buckets = buckets_[group];
  if (action.microbatch >= 0) {
    if (buckets == nullptr)
      buckets = std::make_unique<parameters::GradientBuckets>(runtime_.bucket_layouts()[group], runtime_.device());
    summed_.insert(action.group);
    on_their_way_[group].push_back(buckets->flat(action.bucket));
    buckets.reset();
    return buffer_of(on_their_way_[group].back());
  }
  AUTOPAR_ASSERT(buckets != nullptr, "a rank reduces gradients that it does not have");
  return buffer_of(buckets->flat(action.bucket));
}

void TorchEngine::reduced(const Action& action) {
  if (action.kind != ActionKind::kReduceScatter) return;
  const at::NoGradGuard no_grad;
  const auto group = static_cast<std::size_t>(action.group);
  const auto own = runtime_.shards_of(action.group)->own();
  if (action.microbatch >= 0) {
    shares_[group].add_(on_their_way_[group].front().narrow(0, own.begin, own.size()));
    on_their_way_[group].pop_front();
    return;
  }
  shares_[group] = buckets_[group]->flat(action.bucket).narrow(0, own.begin, own.size()).clone();
  for (const auto& place : runtime_.bucket_layouts()[group].places()) {
    gradients_[runtime_.position_of(ValueId::of(place.form.key))].reset();
  }
  buckets_[group].reset();
}

Buffer TorchEngine::gathering(const Action& action) {
  auto& memory = *runtime_.shards_of(action.group);
  memory.allocate();
  ++whole_[action.group];
  return buffer_of(memory.whole());
}

void TorchEngine::reshard(const Action& action) {
  if (--whole_[action.group] == 0) runtime_.shards_of(action.group)->release();
}

std::deque<at::Tensor> TorchEngine::take_gradients() {
  for (std::size_t group = 0; group < shares_.size(); ++group) {
    if (!shares_[group].defined()) continue;
    for (const auto& place : runtime_.bucket_layouts()[group].places()) {
      const auto within = runtime_.within_part(static_cast<int>(group), place);
      gradients_[runtime_.position_of(ValueId::of(place.form.key))] =
          parameters::part_of(shares_[group], within.begin, {within.size()});
    }
  }
  shares_.clear();
  return std::move(gradients_);
}

DType TorchEngine::bucket_dtype(const Action& action) const {
  const auto& layout = runtime_.bucket_layouts()[static_cast<std::size_t>(action.group)];
  return summed_dtype(layout.buckets()[static_cast<std::size_t>(action.bucket)].dtype);
}

// ---------------------------------------------------------------- results

at::Tensor TorchEngine::take_result(ValueId value) {
  auto result = results_[value].take();
  return result.defined() ? result
                          : zeros_of(ir::form_of(runtime_.graph().value(value), local_samples()), runtime_.device());
}

at::Tensor TorchEngine::sum(ValueId value) const {
  for (const auto& run : runs_) {
    if (auto total = run.sum(value); total.defined()) return total;
  }
  const auto& info = runtime_.graph().value(value);
  return at::zeros(ir::sizes_at(info, context_.batch),
                   ir::options_of(info, runtime_.device()).dtype(autograd::sum_type(info.dtype)));
}

at::Tensor TorchEngine::take_input_gradient(std::size_t position) {
  const auto value = runtime_.graph().inputs[position];
  auto gradient = input_gradients_[value].take();
  return gradient.defined() ? gradient
                            : zeros_of(ir::form_of(runtime_.graph().value(value), local_samples()), runtime_.device());
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
