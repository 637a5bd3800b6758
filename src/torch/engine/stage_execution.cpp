#include "torch/engine/stage_execution.hpp"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <autopar/core/assert.hpp>

#include "capture/ir/only_owner.hpp"

namespace autopar::engine {

StageExecution::StageExecution(Stage& stage, const CallContext& context)
    : stage_(stage), context_(context), slices_(static_cast<std::size_t>(context.split.microbatches())) {
  for (int m = 0; m < context_.split.microbatches(); ++m) forwards_left_ += own_slice(m).empty() ? 0 : 1;
  backwards_left_ = forwards_left_;
}

Interval StageExecution::own_slice(int microbatch) const {
  const auto replica = stage_.program().pipeline.stages[stage_.stage().index()].replica_of(context_.rank);
  AUTOPAR_ASSERT(replica, "a rank runs a stage whose mesh it is not part of");
  return context_.split.slice(stage_.stage(), *replica, microbatch);
}

interpret::SliceContext StageExecution::slice_context(const Action& action) const {
  interpret::SliceContext context;
  context.samples = action.samples.size();
  context.batch = context_.batch;
  context.first_sample = context_.split.first_global_sample(action.microbatch, action.samples);
  context.draws = context_.draws;
  context.counts = &context_.counts;
  context.observer = context_.observer;
  return context;
}

void StageExecution::forward(const Action& action) {
  auto& slice = this->slice(action);
  slice.samples = action.samples;
  const auto context = slice_context(action);
  if (!std::exchange(has_casts_, true)) stage_.start_casts(context_.differentiate, context_.copies);
  const at::AutoGradMode mode(context_.differentiate);
  try {
    bring_inputs(slice, context);
    std::vector<interpret::NormSample> norms(stage_.plan().batch_norms.size());
    if (context_.differentiate && stage_.program().splits_backwards) {
      slice.deferred = std::make_shared<autograd::DeferredGradients>();
    }
    stage_.runner().run(stage_.environment(), context, norms, slice.deferred);
    interpret::pool(norms_, std::move(norms));
    keep_results(slice, context);
  } catch (...) {
    stage_.clear_environment();
    throw;
  }
  --forwards_left_;
  // Backwards then release casts one after the other. On CPUs plans count them until the call ends.
  if (forwards_left_ == 0 && stage_.device().is_cuda()) stage_.drop_casts();
  if (!context_.differentiate) sent_slice_ = action.microbatch;
}

void StageExecution::bring_inputs(Slice& slice, const interpret::SliceContext& context) {
  auto& values = stage_.environment();
  for (const auto buffer : stage_.private_buffers()) {
    values[buffer.index()] = stage_.handle(buffer).detach().clone();
  }
  for (const auto& [value, tensor] : context_.prologue) values[value.index()] = tensor;
  for (const auto value : stage_.boundary().incoming) {
    const auto& info = stage_.graph().value(value);
    auto arrived = slice.arriving[value].take();
    if (!arrived.defined()) arrived = zeros_of(ir::form_of(info, context.samples), stage_.device());
    auto leaf = ir::in_captured_layout(arrived.detach(), info, context.samples);
    const bool differentiable =
        info.requires_grad && context_.differentiate && (leaf.is_floating_point() || leaf.is_complex());
    if (differentiable) {
      leaf.set_requires_grad(true);
      slice.leaves[value] = leaf;
    }
    values[value.index()] = std::move(leaf);
  }
  slice.arriving.clear();
}

void StageExecution::keep_results(Slice& slice, const interpret::SliceContext& context) {
  const at::NoGradGuard no_grad;
  auto& values = stage_.environment();
  for (const auto& sum : stage_.boundary().sums) {
    const auto& made = values[sum.value.index()];
    const auto value = made.detach().to(autograd::sum_type(made.scalar_type()));
    auto& total = sums_[sum.value];
    if (sum.weighing == algebra::GlobalSum::Weighing::kFirst) {
      if (context.first_sample == 0) total = value.clone();
      continue;
    }
    const auto addend = sum.weighing == algebra::GlobalSum::Weighing::kWeighted ? value.mul(context.weight()) : value;
    total = total.defined() ? total.add(addend) : addend.clone();
  }
  for (const auto& update : stage_.plan().buffer_updates) {
    const auto& result = values[update.result.index()];
    if (update.kind == algebra::BufferUpdateKind::kReplicated || !result.defined()) continue;
    if (update.kind == algebra::BufferUpdateKind::kWholeBatch && context.first_sample != 0) continue;
    buffer_results_[update.result].push_back(result.detach());
  }
  // Autograd holds what it needs; the roots of the backward are kept here.
  for (const auto value : stage_.boundary().outgoing) slice.results[value] = values[value.index()];
  if (context_.differentiate) {
    for (const auto& sum : stage_.boundary().sums) slice.results[sum.value] = values[sum.value.index()];
  }
  const auto drop = [&](ValueId value) {
    if (!stage_.is_resident(value)) values[value.index()].reset();
  };
  for (const auto value : stage_.boundary().outgoing) drop(value);
  for (const auto value : stage_.boundary().incoming) drop(value);
  for (const auto& sum : stage_.boundary().sums) drop(sum.value);
  for (const auto& update : stage_.plan().buffer_updates) drop(update.result);
  for (const auto& known : context_.prologue) drop(known.first);
}

BackwardRoots StageExecution::begin_backward(const Action& action, const std::map<ValueId, at::Tensor>& sum_gradients) {
  auto& slice = this->slice(action);
  BackwardRoots roots;
  const auto add = [&](const at::Tensor& value, at::Tensor gradient) {
    if (!value.defined() || !value.requires_grad()) return;
    roots.values.push_back(value);
    roots.gradients.push_back(std::move(gradient));
  };
  for (const auto value : stage_.boundary().outgoing) {
    const auto arrived = slice.arriving.find(value);
    if (arrived == slice.arriving.end() || arrived->second.empty()) continue;
    add(slice.results[value], arrived->second.take());
  }
  for (const auto& sum : stage_.boundary().sums) {
    const auto given = sum_gradients.find(sum.value);
    if (given == sum_gradients.end() || sum.weighing == algebra::GlobalSum::Weighing::kFirst) continue;
    const bool weighted = sum.weighing == algebra::GlobalSum::Weighing::kWeighted;
    add(slice.results[sum.value], weighted ? given->second.mul(slice_context(action).weight()) : given->second);
  }
  slice.arriving.clear();
  slice.results.clear();
  return roots;
}

// Messages directly follow their producer, so at the rank's next compute action they have been packed.
void StageExecution::release_sent() {
  if (sent_slice_ < 0) return;
  auto& slice = slices_[static_cast<std::size_t>(sent_slice_)];
  slice.results.clear();
  for (auto& [value, leaf] : slice.leaves) {  // autograd nodes live until the call ends and hold them
    leaf.mutable_grad().reset();
    leaf.set_data(at::empty({0}, leaf.options().requires_grad(false)));
  }
  slice.leaves.clear();
  sent_slice_ = -1;
}

// ---------------------------------------------------------------- messages

at::Tensor StageExecution::pack(const Action& action, const Channel& channel, ValueId value) {
  auto& slice = this->slice(action);
  const auto& type = stage_.plan().type(value);
  const bool batched = channel.kind == ChannelKind::kBatched;
  const auto samples = slice.samples.size();
  const Interval part{action.samples.begin - slice.samples.begin, action.samples.end - slice.samples.begin};
  if (action.flow == Flow::kValue) {
    const auto& tensor = slice.results[value];
    return batched ? samples_of(tensor, type, samples, part) : tensor;
  }
  const auto leaf = slice.leaves.find(value);
  AUTOPAR_ASSERT(leaf != slice.leaves.end(), "a gradient is sent for a value that has none");
  const auto gradient = leaf->second.grad().defined()
                            ? leaf->second.grad()
                            : at::zeros(leaf->second.sizes(), leaf->second.options().requires_grad(false));
  return batched ? samples_of(gradient, type, samples, part) : gradient;
}

bool StageExecution::goes_to_stages(ValueId value) const {
  const auto& program = stage_.program();
  const auto& channels = program.pipeline.channels;
  for (std::size_t c = 0; c < channels.size(); ++c) {
    if (channels[c].from != stage_.stage() || channels[c].to == kSink) continue;
    const auto& values = program.channel_values[c];
    if (std::binary_search(values.begin(), values.end(), value)) return true;
  }
  return false;
}

// If nothing else holds the operator's output, it is the result itself; its autograd node keeps only the sizes.
at::Tensor StageExecution::pack_result(const Action& action, const Channel& channel, ValueId value,
                                       std::int64_t samples) {
  const bool whole = channel.kind != ChannelKind::kBatched || action.samples.size() == samples;
  const bool all_made = channel.kind != ChannelKind::kBatched || action.samples.size() == slice(action).samples.size();
  const auto& made = slice(action).results[value];
  if (whole && all_made && ir::is_only_owner(made) && !goes_to_stages(value)) return ir::with_own_version(made);
  const auto piece = pack(action, channel, value).detach();
  return whole ? piece.clone() : piece;
}

void StageExecution::unpack(const Action& action, const Channel& channel, ValueId value, const at::Tensor& piece) {
  auto& slice = this->slice(action);
  if (channel.kind != ChannelKind::kBatched) {
    slice.arriving[value].add(piece);
    return;
  }
  const auto whole = own_slice(action.microbatch);
  const Interval part{action.samples.begin - whole.begin, action.samples.end - whole.begin};
  slice.arriving[value].put(piece, stage_.plan().type(value), ir::form_of(stage_.graph().value(value), whole.size()),
                            whole.size(), part, action.flow == Flow::kValue ? Into::kWrite : Into::kAdd);
}

// All tensor shards of a replica hold equal values, which count once.

// All tensor shards of a replica have the same; it counts once.
bool StageExecution::is_first_shard() const {
  return stage_.program().pipeline.stages[stage_.stage().index()].shard_of(context_.rank) == 0;
}

at::Tensor StageExecution::sum(ValueId value) const {
  const auto found = sums_.find(value);
  return found == sums_.end() || !is_first_shard() ? at::Tensor() : found->second;
}

void StageExecution::add_norm_samples(std::size_t batch_norm, std::vector<interpret::NormSample>& samples) const {
  if (is_first_shard() && batch_norm < norms_.size() && norms_[batch_norm].count > 0)
    samples.push_back(norms_[batch_norm]);
}

void StageExecution::add_buffer_results(ValueId result, std::vector<at::Tensor>& results) const {
  const auto found = buffer_results_.find(result);
  if (is_first_shard() && found != buffer_results_.end())
    results.insert(results.end(), found->second.begin(), found->second.end());
}

}  // namespace autopar::engine
