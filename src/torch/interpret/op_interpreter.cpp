#include "torch/interpret/op_interpreter.hpp"

#include <algorithm>
#include <utility>

#include <ATen/core/Reduction.h>
#include <ATen/ops/squeeze.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <autopar/core/assert.hpp>

#include "torch/autograd/chosen_split.hpp"
#include "torch/autograd/custom_functions.hpp"
#include "torch/fused/seeded_dropout.hpp"
#include "torch/interpret/arguments.hpp"
#include "torch/interpret/captured_layouts.hpp"
#include "torch/interpret/second_results.hpp"
#include "torch/interpret/seeded_draws.hpp"

namespace autopar::interpret {

namespace {

bool is_handled(const OpHandling& handling) {
  return !handling.weighted_arguments.empty() || handling.scale_output || handling.count >= 0 ||
         handling.reduction_argument >= 0 || handling.replace_squeeze || handling.draw != Draw::kNone ||
         handling.batch_norm >= 0;
}

void weigh_arguments(replay::ReplayCall& call, const OpHandling& handling, double weight) {
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

}  // namespace

OpInterpreter::OpInterpreter(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<OpId>& ops,
                             const std::vector<ValueId>& keep, c10::Device device, bool splits_backwards,
                             const std::vector<OpId>& recomputed, StageServices services)
    : graph_(graph),
      plan_(plan),
      device_(device),
      side_(std::move(services.side)),
      unwritten_(std::move(services.unwritten)),
      shards_(std::move(services.shards)),
      count_(ops.size()),
      slice_statistics_(graph, plan, ops),
      replayer_(graph, ops, keep, device) {
  const auto add = [this](auto service) {
    auto* const added = service.get();
    services_.push_back(std::move(service));
    return added;
  };
  add(std::make_unique<HookService>(std::move(services.hooks)));
  auto* const layouts = add(std::make_unique<CapturedLayouts>(graph, device));
  auto* const seconds = add(std::make_unique<SecondResults>(graph, ops, keep));
  const auto uses = graph.uses();
  const auto is_summed = [this](ValueId value) { return gradient_is_summed(value); };
  for (const auto op : ops) {
    const auto* step = step_of(op);
    const bool as_shard = step != nullptr && needs_shards(*step);
    const bool is_term = step != nullptr && step->kernel == ShardedOp::Kernel::kBiasOnce;
    const autograd::FunctionSite site{graph, uses, op, device};
    const bool recomputes = std::binary_search(recomputed.begin(), recomputed.end(), op);
    std::optional<autograd::SplitBackward> split;
    if (!as_shard)
      split =
          autograd::chosen_split(site, plan, {splits_backwards, recomputes, side_ != nullptr, is_summed, services.fp8});
    if (split && split->pads_rows) layouts->exclude(op);  // its views may read padded rows
    if (split && splits_backwards && !recomputes) {
      splits_.deferrable.push_back(split->weight);
      if (split->bias.valid()) splits_.deferrable.push_back(split->bias);
    }
    const auto* function = autograd::custom_function_of(site);
    if (function != nullptr) functions_[op] = function;
    if (split && split->fp8 != nullptr && function == nullptr) splits_.in_fp8.push_back(op);
    if (layouts->concerns(op) || as_shard) seconds->exclude(op);
    auto acting = services_at(op);
    const bool as_it_is = !split && function == nullptr && !is_handled(plan.handling(op)) && !as_shard && !is_term;
    if (as_it_is && acting.empty()) continue;
    replayer_.handle(op, [this, acting = std::move(acting), split = std::move(split)](replay::ReplayCall& call) {
      for (auto* service : acting) service->before(call);
      handle(call, split);
      for (auto service = acting.rbegin(); service != acting.rend(); ++service) (*service)->after(call);
    });
  }
  std::sort(splits_.deferrable.begin(), splits_.deferrable.end());
  splits_.deferrable.erase(std::unique(splits_.deferrable.begin(), splits_.deferrable.end()), splits_.deferrable.end());
  std::sort(splits_.in_fp8.begin(), splits_.in_fp8.end());
}

std::vector<OpService*> OpInterpreter::services_at(OpId op) const {
  std::vector<OpService*> found;
  for (const auto& service : services_) {
    if (service->concerns(op)) found.push_back(service.get());
  }
  return found;
}

const tensor_parallel::ShardedStep* OpInterpreter::step_of(OpId op) const {
  return shards_ ? shards_->step_of(op) : nullptr;
}

bool OpInterpreter::gradient_is_summed(ValueId value) const {
  const auto definer = graph_.value(value).definer;
  const auto* step = definer.valid() ? step_of(definer) : nullptr;
  return step != nullptr && step->move && sums_gradient(*step->move);
}

void OpInterpreter::run(replay::Environment& values, const SliceContext& slice, std::vector<NormSample>& statistics,
                        std::shared_ptr<autograd::DeferredGradients> deferred) {
  run(values, slice, statistics, std::move(deferred), {0, count_});
}

void OpInterpreter::run(replay::Environment& values, const SliceContext& slice, std::vector<NormSample>& statistics,
                        std::shared_ptr<autograd::DeferredGradients> deferred, OpRange ops) {
  const c10::impl::ExcludeDispatchKeyGuard as_captured(c10::autocast_dispatch_keyset);
  slice_ = &slice;
  statistics_ = &statistics;
  slice_statistics_.clear();
  for (const auto& service : services_) service->clear();
  deferred_ = std::move(deferred);
  replayer_.run(values, {slice.samples, slice.batch}, ops.first, ops.last, slice.observer);
  deferred_.reset();
  for (const auto& service : services_) service->clear();
}

void OpInterpreter::handle(replay::ReplayCall& call, const std::optional<autograd::SplitBackward>& split) {
  const auto& handling = plan_.handling(call.id);
  if (handling.reduction_argument >= 0) {
    argument(call, handling.reduction_argument) = static_cast<std::int64_t>(at::Reduction::Sum);
  }
  weigh_arguments(call, handling, slice_->weight());
  call_by_handling(call, handling, split);
  if (handling.count >= 0) {
    AUTOPAR_ASSERT(slice_->counts != nullptr, "a loss was run before its targets were counted");
    const auto& count = (*slice_->counts)[static_cast<std::size_t>(handling.count)];
    change_results(call.stack, [&](const at::Tensor& result) { return result.div(count.to(result.scalar_type())); });
  }
  if (handling.scale_output && slice_->samples != slice_->batch) {
    change_results(call.stack, [&](const at::Tensor& result) { return result.mul(slice_->weight()); });
  }
}

void OpInterpreter::call_by_handling(replay::ReplayCall& call, const OpHandling& handling,
                                     const std::optional<autograd::SplitBackward>& split) {
  const auto* step = step_of(call.id);
  if (step != nullptr && step->kernel == ShardedOp::Kernel::kBiasOnce) leave_bias_to_first(call, shards_->group);
  if (step != nullptr && needs_shards(*step)) {
    run_on_shards(call, *step, shards_->group);
  } else if (handling.batch_norm >= 0) {
    const auto index = static_cast<std::size_t>(handling.batch_norm);
    slice_statistics_.call(call, plan_.batch_norms[index], (*statistics_)[index]);
  } else if (handling.replace_squeeze) {
    auto squeezed = at::squeeze(call.stack[0].toTensor(), handling.squeeze_dims);
    call.stack.clear();
    call.stack.emplace_back(std::move(squeezed));
  } else if (handling.draw != Draw::kNone) {
    call_random(call, handling.draw);
  } else if (split && !functions_.contains(call.id)) {
    autograd::run_split(call, *split, {deferred_, side_, unwritten_});
  } else {
    call_function(call);
  }
}

void OpInterpreter::call_function(replay::ReplayCall& call) const {
  const auto function = functions_.find(call.id);
  if (function != functions_.end())
    function->second->run(call);
  else
    call.call_original();
}

void OpInterpreter::call_random(replay::ReplayCall& call, Draw draw) const {
  const int shard = step_of(call.id) == nullptr ? 0 : shards_->group.place();
  const auto seed = seed_of(slice_->draws, {call.id, draw == Draw::kPerSlice ? slice_->first_sample : -1, shard});
  if (const auto position = argument_named(call.node, "generator"); position >= 0) {
    argument(call, position) = fused::make_generator(device_, seed);
    call.call_original();
    return;
  }
  if (const auto position = argument_named(call.node, "seed"); position >= 0) {
    argument(call, position) = fused::to_tensor(seed);
    call.call_original();
    return;
  }
  if (fused::run_by_seed(call, seed)) return;
  const DefaultGeneratorGuard guard(device_, seed);
  call_function(call);
}

}  // namespace autopar::interpret
