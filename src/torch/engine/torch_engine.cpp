#include <autopar/torch/engine/torch_engine.hpp>

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <autopar/core/assert.hpp>

namespace autopar {

namespace {

const Channel& channel_of(const StageRuntime& stage, const Action& action) {
  return stage.pipeline().channels[static_cast<std::size_t>(action.channel)];
}

at::TensorOptions options_of(const ValueInfo& value, c10::Device device) {
  return at::TensorOptions().dtype(value.dtype).device(device);
}

}  // namespace

TorchEngine::TorchEngine(StageRuntime& stage, CallContext context) : stage_(stage), context_(std::move(context)) {
  shares_.resize(static_cast<std::size_t>(context_.split.microbatches()));
}

void TorchEngine::set_sum_gradient(ValueId value, at::Tensor gradient) { sum_gradients_[value] = std::move(gradient); }

void TorchEngine::set_result_gradient(ValueId value, at::Tensor gradient) {
  result_gradients_[value] = std::move(gradient);
}

void TorchEngine::start_gradients() {
  buckets_.clear();
  gradients_.assign(stage_.parameters().size(), at::Tensor());
  for (std::size_t group = 0; group < stage_.bucket_layouts().size(); ++group) {
    auto& buckets = buckets_.emplace_back();
    if (!stage_.in_group(static_cast<int>(group))) continue;
    const auto& layout = stage_.bucket_layouts()[group];
    buckets = std::make_unique<GradientBuckets>(layout, stage_.device());
    for (std::size_t i = 0; i < layout.places().size(); ++i) {
      const auto& place = layout.places()[i];
      const auto parameter = ValueId::of(place.form.key);
      const std::pair bucket(static_cast<int>(group), place.bucket);
      gradients_[stage_.position_of(parameter)] = buckets->views()[i];
      bucket_of_[parameter] = bucket;
      ++missing_[bucket];
    }
  }
  const auto stage = stage_.stage();
  if (!stage.valid()) return;
  for (int m = 0; m < context_.split.microbatches(); ++m) backwards_left_ += own_share(m).empty() ? 0 : 1;
}

Interval TorchEngine::own_share(int microbatch) const {
  const auto& ranks = stage_.pipeline().stages[stage_.stage().index()];
  const auto replica = std::find(ranks.begin(), ranks.end(), context_.rank) - ranks.begin();
  return context_.split.share(stage_.stage(), static_cast<int>(replica), microbatch);
}

TorchEngine::Share& TorchEngine::share(const Action& action) {
  return shares_[static_cast<std::size_t>(action.microbatch)];
}

ShareContext TorchEngine::share_context(const Action& action) const {
  ShareContext context;
  context.samples = action.samples.size();
  context.batch = context_.batch;
  context.first_sample = context_.split.first_global_sample(action.microbatch, action.samples);
  context.draws = context_.draws;
  context.counts = &context_.counts;
  return context;
}

// ---------------------------------------------------------------- turns

void TorchEngine::forward(const Action& action) {
  release_sent();
  auto& share = this->share(action);
  share.samples = action.samples;
  const auto context = share_context(action);
  const at::AutoGradMode mode(context_.differentiate);
  try {
    bring_inputs(share, context);
    share.norms.resize(stage_.plan().batch_norms.size());
    stage_.runner().run(stage_.environment(), context, share.norms);
    keep_results(share, context);
  } catch (...) {
    stage_.clear_environment();
    throw;
  }
  if (!context_.differentiate) sent_share_ = action.microbatch;
}

void TorchEngine::bring_inputs(Share& share, const ShareContext& context) {
  auto& values = stage_.environment();
  for (const auto buffer : stage_.private_buffers()) {
    values[buffer.index()] = stage_.handle(buffer).detach().clone();
  }
  for (const auto& [value, tensor] : context_.prologue) values[value.index()] = tensor;
  for (const auto value : stage_.incoming()) {
    const auto& info = stage_.graph().value(value);
    const auto arrived = share.arriving[value].take(sizes_at(info, context.samples), options_of(info, stage_.device()));
    auto leaf = in_captured_layout(arrived.detach(), info, context.samples);
    const bool differentiable = info.requires_grad && context_.differentiate && (leaf.is_floating_point() || leaf.is_complex());
    if (differentiable) {
      leaf.set_requires_grad(true);
      share.leaves[value] = leaf;
    }
    values[value.index()] = std::move(leaf);
  }
  share.arriving.clear();
}

void TorchEngine::keep_results(Share& share, const ShareContext& context) {
  const at::NoGradGuard no_grad;
  auto& values = stage_.environment();
  for (const auto& sum : stage_.sums()) {
    const auto value = values[sum.value.index()].detach();
    auto& total = sums_[sum.value];
    if (sum.share == GlobalSum::Share::kFirst) {
      if (context.first_sample == 0) total = value.clone();
      continue;
    }
    const auto addend = sum.share == GlobalSum::Share::kWeighted ? value.mul(context.weight()) : value;
    total = total.defined() ? total.add(addend) : addend.clone();
  }
  for (const auto& update : stage_.plan().buffer_updates) {
    const auto& result = values[update.result.index()];
    if (update.kind == BufferUpdateKind::kReplicated || !result.defined()) continue;
    buffer_results_[update.result].push_back(result.detach());
  }
  // What autograd needs it holds itself; the roots of the backward are needed here.
  for (const auto value : stage_.outgoing()) share.results[value] = values[value.index()];
  if (context_.differentiate) {
    for (const auto& sum : stage_.sums()) share.results[sum.value] = values[sum.value.index()];
  }
  const auto drop = [&](ValueId value) {
    if (!stage_.is_resident(value)) values[value.index()].reset();
  };
  for (const auto value : stage_.outgoing()) drop(value);
  for (const auto value : stage_.incoming()) drop(value);
  for (const auto& sum : stage_.sums()) drop(sum.value);
  for (const auto& update : stage_.plan().buffer_updates) drop(update.result);
  for (const auto& known : context_.prologue) drop(known.first);
}

void TorchEngine::backward(const Action& action) {
  release_sent();
  auto& share = this->share(action);
  const auto context = share_context(action);
  std::vector<at::Tensor> roots, gradients;
  for (const auto value : stage_.outgoing()) {
    const auto arrived = share.arriving.find(value);
    if (arrived == share.arriving.end() || arrived->second.empty()) continue;
    add_root(share.results[value], arrived->second.take({}, {}), roots, gradients);
  }
  for (const auto& sum : stage_.sums()) {
    const auto given = sum_gradients_.find(sum.value);
    if (given == sum_gradients_.end() || sum.share == GlobalSum::Share::kFirst) continue;
    const bool weighted = sum.share == GlobalSum::Share::kWeighted;
    add_root(share.results[sum.value], weighted ? given->second.mul(context.weight()) : given->second, roots,
             gradients);
  }
  share.arriving.clear();
  share.results.clear();
  if (--backwards_left_ == 0 && bucket_ready_) {
    stage_.on_gradient([this](ValueId parameter) { count_down(parameter); });
  }
  if (!roots.empty()) {
    bind_gradients();
    torch::autograd::backward(roots, gradients);
    unbind_gradients();
  }
  stage_.on_gradient({});
  sent_share_ = action.microbatch;
}

void TorchEngine::count_down(ValueId parameter) {
  const auto found = bucket_of_.find(parameter);
  if (found == bucket_of_.end() || --missing_[found->second] > 0) return;
  bucket_ready_(found->second.first, found->second.second);
}

void TorchEngine::add_root(const at::Tensor& value, at::Tensor gradient, std::vector<at::Tensor>& roots,
                           std::vector<at::Tensor>& gradients) {
  if (!value.defined() || !value.requires_grad()) return;
  roots.push_back(value);
  gradients.push_back(std::move(gradient));
  spent_.push_back(value.grad_fn());
}

// Another call's backward may run between two of this one, so the compute copies carry gradients only while one runs.
void TorchEngine::bind_gradients() {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    stage_.compute_copy(stage_.parameters()[i]).mutable_grad() = gradients_[i];
  }
}

void TorchEngine::unbind_gradients() {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    gradients_[i] = std::move(stage_.compute_copy(stage_.parameters()[i]).mutable_grad());
  }
}

// Messages follow their producer directly, so at the next turn of the stage they have been packed.
void TorchEngine::release_sent() {
  if (sent_share_ < 0) return;
  auto& share = shares_[static_cast<std::size_t>(sent_share_)];
  share.results.clear();
  share.leaves.clear();
  sent_share_ = -1;
}

// ---------------------------------------------------------------- messages

const std::vector<ValueId>& TorchEngine::message_values(const Action& action) const {
  return action.flow == Flow::kValue ? stage_.channel_values(action.channel) : stage_.channel_gradients(action.channel);
}

std::vector<TensorForm> TorchEngine::message_forms(const Action& action) const {
  std::vector<TensorForm> forms;
  for (const auto value : message_values(action)) {
    const auto& info = stage_.graph().value(value);
    forms.push_back({sizes_at(info, action.samples.size()), info.dtype});
  }
  return forms;
}

Interval TorchEngine::within_local(const Action& action) const {
  const auto& split = context_.split;
  const auto shift = split.local(context_.rank, action.microbatch).begin -
                     split.piece(context_.rank, action.microbatch).begin;
  return {action.samples.begin + shift, action.samples.end + shift};
}

Buffer TorchEngine::pack(const Action& action) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const auto value : message_values(action)) parts.push_back(message_part(action, value));
  return pack_tensors(parts, stage_.device());
}

at::Tensor TorchEngine::message_part(const Action& action, ValueId value) {
  const auto& channel = channel_of(stage_, action);
  const auto& info = stage_.graph().value(value);
  const auto& type = stage_.plan().type(value);
  const bool batched = channel.kind == ChannelKind::kBatched;
  const bool at_source = action.flow == Flow::kValue && channel.from == kSource;
  const bool at_sink = action.flow == Flow::kGradient && channel.to == kSink;
  if (at_source || at_sink) {
    const auto& local = at_source ? context_.inputs[static_cast<std::size_t>(info.position)] : result_gradients_[value];
    if (!local.defined()) return at::zeros(sizes_at(info, action.samples.size()), options_of(info, stage_.device()));
    const auto whole = context_.split.local(context_.rank, context_.split.microbatches() - 1).end;
    return batched ? samples_of(local, type, whole, within_local(action)) : local;
  }
  auto& share = this->share(action);
  const auto samples = share.samples.size();
  const Interval part{action.samples.begin - share.samples.begin, action.samples.end - share.samples.begin};
  if (action.flow == Flow::kValue) {
    const auto& tensor = share.results[value];
    auto piece = batched ? samples_of(tensor, type, samples, part) : tensor;
    // A result never shares memory with what the stage still needs, nor with an argument.
    return channel.to == kSink && action.peer == context_.rank ? piece.detach().clone() : piece;
  }
  const auto leaf = share.leaves.find(value);
  AUTOPAR_ASSERT(leaf != share.leaves.end(), "a gradient is sent for a value that has none");
  const auto gradient = leaf->second.grad().defined()
                            ? leaf->second.grad()
                            : at::zeros(leaf->second.sizes(), leaf->second.options().requires_grad(false));
  return batched ? samples_of(gradient, type, samples, part) : gradient;
}

Buffer TorchEngine::landing(const Action& action) { return make_landing(message_forms(action), stage_.device()); }

void TorchEngine::accept(const Action& action, const Buffer& buffer) {
  const at::NoGradGuard no_grad;
  const auto& channel = channel_of(stage_, action);
  const auto& values = message_values(action);
  const auto pieces = unpack_tensors(buffer, message_forms(action));
  const bool at_edge = action.flow == Flow::kValue ? channel.to == kSink : channel.from == kSource;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (at_edge) {
      accept_at_edge(action, values[i], pieces[i]);
      continue;
    }
    auto& share = this->share(action);
    if (channel.kind != ChannelKind::kBatched) {
      share.arriving[values[i]].add(pieces[i]);
      continue;
    }
    const auto whole = own_share(action.microbatch);
    const Interval part{action.samples.begin - whole.begin, action.samples.end - whole.begin};
    share.arriving[values[i]].put(pieces[i], stage_.plan().type(values[i]),
                                  sizes_at(stage_.graph().value(values[i]), whole.size()), whole.size(), part,
                                  action.flow == Flow::kValue ? Into::kWrite : Into::kAdd);
  }
}

void TorchEngine::accept_at_edge(const Action& action, ValueId value, const at::Tensor& piece) {
  auto& target = action.flow == Flow::kValue ? results_[value] : input_gradients_[value];
  if (channel_of(stage_, action).kind != ChannelKind::kBatched) {
    target.add(piece);
    return;
  }
  const auto whole = context_.split.local(context_.rank, context_.split.microbatches() - 1).end;
  target.put(piece, stage_.plan().type(value), sizes_at(stage_.graph().value(value), whole), whole,
             within_local(action), action.flow == Flow::kValue ? Into::kWrite : Into::kAdd);
}

Buffer TorchEngine::bucket(const Action& action) {
  const auto& buckets = buckets_[static_cast<std::size_t>(action.group)];
  AUTOPAR_ASSERT(buckets != nullptr, "a rank reduces gradients that it does not have");
  auto flat = std::make_shared<at::Tensor>(buckets->flat(action.bucket));
  auto* data = static_cast<std::byte*>(flat->data_ptr());
  const auto bytes = static_cast<std::size_t>(flat->nbytes());
  return {data, bytes, std::move(flat)};
}

DType TorchEngine::bucket_dtype(const Action& action) const {
  const auto& layout = stage_.bucket_layouts()[static_cast<std::size_t>(action.group)];
  return reduction_dtype(layout.buckets()[static_cast<std::size_t>(action.bucket)].dtype);
}

// ---------------------------------------------------------------- results

at::Tensor TorchEngine::take_result(ValueId value) {
  const auto samples = context_.split.local(context_.rank, context_.split.microbatches() - 1).end;
  const auto& info = stage_.graph().value(value);
  return results_[value].take(sizes_at(info, samples), options_of(info, stage_.device()));
}

at::Tensor TorchEngine::sum(ValueId value) const {
  const auto found = sums_.find(value);
  if (found != sums_.end() && found->second.defined()) return found->second;
  const auto& info = stage_.graph().value(value);
  return at::zeros(sizes_at(info, context_.batch), options_of(info, stage_.device()));
}

at::Tensor TorchEngine::take_input_gradient(std::size_t position) {
  const auto value = stage_.graph().inputs[position];
  const auto samples = context_.split.local(context_.rank, context_.split.microbatches() - 1).end;
  const auto& info = stage_.graph().value(value);
  return input_gradients_[value].take(sizes_at(info, samples), options_of(info, stage_.device()));
}

std::vector<NormSample> TorchEngine::norm_samples(std::size_t batch_norm) const {
  std::vector<NormSample> samples;
  for (const auto& share : shares_) {
    if (batch_norm < share.norms.size() && share.norms[batch_norm].count > 0) samples.push_back(share.norms[batch_norm]);
  }
  return samples;
}

const std::vector<at::Tensor>& TorchEngine::buffer_results(ValueId result) const {
  static const std::vector<at::Tensor> kNone;
  const auto found = buffer_results_.find(result);
  return found == buffer_results_.end() ? kNone : found->second;
}

}  // namespace autopar
