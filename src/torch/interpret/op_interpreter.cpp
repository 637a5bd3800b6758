#include "torch/interpret/op_interpreter.hpp"

#include <algorithm>
#include <utility>

#include <ATen/core/Reduction.h>
#include <ATen/ops/squeeze.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <autopar/core/assert.hpp>

#include "capture/ir/tensor_form.hpp"
#include "torch/autograd/custom_functions.hpp"
#include "torch/autograd/padded_rows.hpp"
#include "torch/fused/column_sums.hpp"
#include "torch/fused/seeded_dropout.hpp"
#include "torch/fused/whole_packs.hpp"
#include "torch/interpret/draws.hpp"

namespace autopar {

namespace {

bool is_handled(const OpHandling& handling) {
  return !handling.weighted_arguments.empty() || handling.scale_output || handling.count >= 0 ||
         handling.reduction_argument >= 0 || handling.replace_squeeze || handling.draw != Draw::kNone ||
         handling.batch_norm >= 0;
}

c10::IValue& argument(ReplayCall& call, std::int32_t position) {
  return call.stack[static_cast<std::size_t>(position)];
}

std::int32_t argument_named(const OpNode& node, const char* name) {
  const auto position = node.op.schema().argumentIndexWithName(name);
  return position ? static_cast<std::int32_t>(*position) : -1;
}

void weigh_arguments(ReplayCall& call, const OpHandling& handling, double weight) {
  for (const auto position : handling.weighted_arguments) {
    auto& weighted = argument(call, position);
    if (weighted.isTensor()) {
      weighted = weighted.toTensor().mul(weight);
    } else {
      weighted = weighted.toScalar().to<double>() * weight;
    }
  }
}

/// Applies `change` to every floating or complex tensor that the call returned.
template <class Change>
void change_results(torch::jit::Stack& stack, Change&& change) {
  for (auto& result : stack) {
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    const auto tensor = result.toTensor();
    if (tensor.is_floating_point() || tensor.is_complex()) result = change(tensor);
  }
}

/// By op: whether it makes memory that other values are views of. They were captured with the strides that the CPU's
/// kernels give it; another device's may lay it out otherwise (attention on CUDA does), and a view would fail or see
/// other elements.
std::vector<bool> makes_viewed_memory(const OpGraph& graph) {
  std::vector<int> values(static_cast<std::size_t>(graph.storage_count), 0);
  for (const auto& value : graph.values) {
    if (value.storage.valid()) ++values[value.storage.index()];
  }
  std::vector<bool> makes(graph.ops.size(), false);
  const auto creators = graph.storage_creators();
  for (std::size_t storage = 0; storage < creators.size(); ++storage) {
    if (creators[storage].valid() && values[storage] > 1) makes[creators[storage].index()] = true;
  }
  return makes;
}

/// Whether it alone adds to the gradients of its parameters.
bool is_only_reader(const OpGraph& graph, const std::vector<std::vector<OpId>>& uses, OpId op,
                    const SplitBackward& split) {
  const auto alone = [&](ValueId value) {
    return uses[value.index()].size() == 1 && std::ranges::find(graph.outputs, value) == graph.outputs.end();
  };
  const auto adds_alone = [&](int position, ValueId parameter) {
    return !parameter.valid() || (alone(parameter) && alone(graph.input(op, position)));
  };
  return adds_alone(split.weight_at, split.weight) && (split.bias_at < 0 || adds_alone(split.bias_at, split.bias));
}

/// Whether it is worth a history of its own where nothing is deferred.
bool gains(const SplitBackward& split) {
  return split.of_cast || split.may_be_beside || split.may_be_left || split.sums_bias;
}

/// Elements that a statistic takes in a row of many, aligned for any kernel.
std::int64_t places_of(std::int64_t channels) {
  constexpr std::int64_t kAligned = 64;
  return (channels + kAligned - 1) / kAligned * kAligned;
}

}  // namespace

OpInterpreter::OpInterpreter(const OpGraph& graph, const BatchPlan& plan, std::vector<OpId> ops,
                             const std::vector<ValueId>& keep, c10::Device device, bool splits_backwards,
                             const std::vector<OpId>& whole, OpHooks hooks, std::shared_ptr<SideStream> side,
                             std::shared_ptr<const TensorShards> shards)
    : graph_(graph),
      plan_(plan),
      device_(device),
      hooks_(std::move(hooks)),
      side_(std::move(side)),
      shards_(std::move(shards)),
      layout_matters_(device.is_cpu() ? std::vector<bool>(graph.ops.size()) : makes_viewed_memory(graph)),
      count_(ops.size()),
      seconds_(graph, ops, keep),
      replayer_(graph, ops, keep, device) {
  const auto uses = graph.uses();
  for (const auto op : ops) {
    const auto norm = plan.handling(op).batch_norm;
    const auto running = norm < 0 ? ValueId::none() : plan.batch_norms[static_cast<std::size_t>(norm)].running_mean;
    if (running.valid()) statistics_places_ += 2 * places_of(sizes_at(graph.value(running), 1).at(0));
    const auto* step = step_of(op);
    const bool as_shard = step != nullptr && needs_shards(*step);
    const bool recomputes = std::binary_search(whole.begin(), whole.end(), op);
    const bool may_defer = splits_backwards && !recomputes;
    auto split = as_shard ? std::nullopt : split_backward_of(graph, plan, op);
    if (split && is_only_reader(graph, uses, op, *split)) {
      split->may_be_beside = split->is_product && side_ && !recomputes;
      split->may_be_added = split->add_weights && split->of_cast && !recomputes;
      split->may_be_left = split->is_product && reads_what_is_summed(op, *split);
    }
    if (split) split->sums_bias = split->is_product && split->bias.valid() && fused::has_column_sums(device);
    if (split && !may_defer && !gains(*split)) split.reset();
    if (split && device.is_cuda() && may_pad_rows(graph, op)) {
      split->pads_rows = true;
      split->input = &fused::gradient_through_padded_rows;
      layout_matters_[op.index()] = false;  // its views are those that may read such rows
    }
    if (split && may_defer) {
      deferrable_.push_back(split->weight);
      if (split->bias.valid()) deferrable_.push_back(split->bias);
    }
    const auto* function = custom_function_of({graph, uses, op, device});
    if (function != nullptr) functions_[op] = function;
    if (layout_matters_[op.index()] || as_shard) seconds_.exclude(op);
    const bool handled = is_handled(plan.handling(op)) || layout_matters_[op.index()] || hooks_.ops.count(op) > 0 ||
                         as_shard || seconds_.concerns(op);
    if (split || handled || function != nullptr) {
      replayer_.handle(op, [this, split = std::move(split)](ReplayCall& call) { handle(call, split); });
    }
  }
  std::sort(deferrable_.begin(), deferrable_.end());
  deferrable_.erase(std::unique(deferrable_.begin(), deferrable_.end()), deferrable_.end());
}

const ShardedStep* OpInterpreter::step_of(OpId op) const { return shards_ ? shards_->step_of(op) : nullptr; }

// A value whose gradient is summed over the shards.
bool OpInterpreter::reads_what_is_summed(OpId op, const SplitBackward& split) const {
  const auto definer = graph_.value(graph_.input(op, split.x_at)).definer;
  const auto* step = definer.valid() ? step_of(definer) : nullptr;
  return step != nullptr && step->move && sums_gradient(*step->move);
}

void OpInterpreter::run(Environment& values, const SliceContext& slice, std::vector<NormSample>& statistics,
                        std::shared_ptr<DeferredGradients> deferred) {
  run(values, slice, statistics, std::move(deferred), {0, count_});
}

void OpInterpreter::run(Environment& values, const SliceContext& slice, std::vector<NormSample>& statistics,
                        std::shared_ptr<DeferredGradients> deferred, OpRange ops) {
  const c10::impl::ExcludeDispatchKeyGuard as_captured(c10::autocast_dispatch_keyset);
  slice_ = &slice;
  statistics_ = &statistics;
  zeros_.reset();
  seconds_.clear();
  deferred_ = std::move(deferred);
  replayer_.run(values, {slice.samples, slice.batch}, ops.first, ops.last);
  deferred_.reset();
  seconds_.clear();
}

void OpInterpreter::handle(ReplayCall& call, const std::optional<SplitBackward>& split) {
  const auto& handling = plan_.handling(call.id);
  const bool hooked = hooks_.ops.count(call.id) > 0;
  if (hooked) {
    hooks_.before(call.id);
    take_given(call);
  }
  seconds_.give(call);
  if (handling.reduction_argument >= 0) {
    argument(call, handling.reduction_argument) = static_cast<std::int64_t>(at::Reduction::Sum);
  }
  weigh_arguments(call, handling, slice_->weight());
  if (const auto* step = step_of(call.id); step != nullptr && needs_shards(*step)) {
    proceed_as_shard(call, *step, shards_->group);
  } else if (handling.batch_norm >= 0) {
    const auto index = static_cast<std::size_t>(handling.batch_norm);
    call_batch_norm(call, plan_.batch_norms[index], (*statistics_)[index]);
  } else if (handling.replace_squeeze) {
    auto squeezed = at::squeeze(call.stack[0].toTensor(), handling.squeeze_dims);
    call.stack.clear();
    call.stack.emplace_back(std::move(squeezed));
  } else if (handling.draw != Draw::kNone) {
    call_random(call, handling.draw);
  } else if (split && !functions_.contains(call.id)) {
    proceed_splitting(call, *split, deferred_, side_);
  } else {
    proceed(call);
  }
  if (handling.count >= 0) {
    AUTOPAR_ASSERT(slice_->counts != nullptr, "a loss was run before its targets were counted");
    const auto& count = (*slice_->counts)[static_cast<std::size_t>(handling.count)];
    change_results(call.stack, [&](const at::Tensor& result) { return result.div(count.to(result.scalar_type())); });
  }
  if (handling.scale_output && slice_->samples != slice_->batch) {
    change_results(call.stack, [&](const at::Tensor& result) { return result.mul(slice_->weight()); });
  }
  seconds_.take(call);
  if (layout_matters_[call.id.index()]) restore_layout(call);
  if (hooked) hooks_.after(call.id, call.stack);
}

void OpInterpreter::proceed(ReplayCall& call) const {
  const auto function = functions_.find(call.id);
  if (function != functions_.end())
    function->second->run(call);
  else
    call.proceed();
}

void OpInterpreter::restore_layout(ReplayCall& call) const {
  for (const auto& output : call.node.outputs) {
    auto& result = call.stack[static_cast<std::size_t>(output.position)];
    if (output.kind == SlotKind::kList) {
      auto list = result.toTensorVector();
      for (std::size_t k = 0; k < list.size(); ++k) {
        const auto value = output.values[k];
        if (value.valid()) list[k] = in_captured_layout(std::move(list[k]), graph_.value(value), slice_->samples);
      }
      result = std::move(list);
      continue;
    }
    if (output.kind != SlotKind::kTensor || !output.values[0].valid()) continue;
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    result = in_captured_layout(result.toTensor(), graph_.value(output.values[0]), slice_->samples);
  }
}

void OpInterpreter::call_random(ReplayCall& call, Draw draw) const {
  const int shard = step_of(call.id) == nullptr ? 0 : shards_->group.place();
  const auto seed = seed_of(slice_->draws, {call.id, draw == Draw::kPerSlice ? slice_->first_sample : -1, shard});
  if (const auto position = argument_named(call.node, "generator"); position >= 0) {
    argument(call, position) = fused::make_generator(device_, seed);
    call.proceed();
    return;
  }
  if (const auto position = argument_named(call.node, "seed"); position >= 0) {
    argument(call, position) = fused::to_tensor(seed);
    call.proceed();
    return;
  }
  if (fused::proceed_by_seed(call, seed)) return;
  const DefaultGeneratorGuard guard(device_, seed);
  proceed(call);
}

// Arguments that a hook has made.
void OpInterpreter::take_given(ReplayCall& call) {
  for (const auto& slot : call.node.inputs) {
    const auto value = slot.values.front();
    if (slot.kind != SlotKind::kTensor || !value.valid()) continue;
    auto& given = argument(call, slot.position);
    if (given.isTensor() && !given.toTensor().defined()) given = call.environment[value.index()];
  }
}

// Those of all norms of a run are one memory: a fill for each took the host as long as an operator.
at::Tensor OpInterpreter::zeros_for_statistic(const at::Tensor& like) {
  const auto places = places_of(like.numel());
  const bool fits =
      zeros_.defined() && zeros_.scalar_type() == like.scalar_type() && given_zeros_ + places <= zeros_.numel();
  if (!fits) {
    zeros_ = at::zeros({std::max(places, statistics_places_)}, like.options());
    given_zeros_ = 0;
  }
  const auto part = zeros_.narrow(0, given_zeros_, like.numel());
  given_zeros_ += places;
  return with_own_version(part);
}

// With momentum 1 the operator leaves the slice's own statistics in its running buffers, at no cost.
void OpInterpreter::call_batch_norm(ReplayCall& call, const BatchNormPlan& norm, NormSample& sample) {
  if (!norm.running_mean.valid()) {
    call.proceed();
    return;
  }
  const auto mean_at = argument_named(call.node, "running_mean"), var_at = argument_named(call.node, "running_var");
  const auto momentum_at = argument_named(call.node, "momentum");
  AUTOPAR_ASSERT(mean_at >= 0 && var_at >= 0 && momentum_at >= 0, "a batch norm has no running statistics to replace");
  const auto mean = zeros_for_statistic(argument(call, mean_at).toTensor());
  const auto variance = zeros_for_statistic(mean);
  argument(call, mean_at) = mean;
  argument(call, var_at) = variance;
  argument(call, momentum_at) = 1.0;
  call.proceed();
  sample = {.mean = mean,
            .variance = variance,
            .count = static_cast<double>(norm.samples.at(slice_->samples)),
            .by_sample = norm.by_sample,
            .as_given = true};
}

}  // namespace autopar
