#include <autopar/torch/engine/op_runner.hpp>

#include <algorithm>
#include <optional>
#include <string>

#include <ATen/core/List.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/squeeze.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>
#include <autopar/torch/engine/draws.hpp>

namespace autopar {

namespace {

// Sizes are solved from the share; arithmetic on the batch size means the whole batch.
void solve_integers(const OpNode& node, const ShareContext& share, std::vector<c10::IValue>& arguments) {
  for (const auto& integer : node.integers) {
    const auto number = integer.expr.at(integer.role == IntegerRole::kSize ? share.samples : share.batch);
    auto& argument = arguments[static_cast<std::size_t>(integer.argument)];
    if (integer.element < 0) {
      argument = number;
    } else {
      auto list = argument.toIntVector();
      list[static_cast<std::size_t>(integer.element)] = number;
      argument = std::move(list);
    }
  }
}

bool reads_tensors(const OpNode& node) {
  return std::any_of(node.inputs.begin(), node.inputs.end(), [](const Slot& slot) {
    return std::any_of(slot.values.begin(), slot.values.end(), [](ValueId value) { return value.valid(); });
  });
}

// The model was captured on the CPU; what it makes there is made on the rank's device.
void retarget(const OpNode& node, c10::Device device, std::vector<c10::IValue>& arguments) {
  if (device.is_cpu()) return;
  const auto& schema = node.op.schema().arguments();
  const bool factory = !reads_tensors(node);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool unset_device = arguments[i].isNone() && factory && schema[i].name() == "device";
    if (arguments[i].isDevice() || unset_device) arguments[i] = device;
  }
}

std::int32_t argument_named(const OpNode& node, const char* name) {
  const auto position = node.op.schema().argumentIndexWithName(name);
  return position ? static_cast<std::int32_t>(*position) : -1;
}

std::string base_name(const OpNode& node) {
  auto name = node.op.schema().name();
  name.erase(0, name.find("::") + 2);
  return name;
}

c10::IValue tensor_list(const Slot& slot, const Environment& values) {
  if (slot.kind == SlotKind::kList) {
    c10::List<at::Tensor> list;
    list.reserve(slot.values.size());
    for (auto value : slot.values) list.push_back(value.valid() ? values[value.index()] : at::Tensor());
    return list;
  }
  c10::List<std::optional<at::Tensor>> list;
  list.reserve(slot.values.size());
  for (auto value : slot.values) {
    list.push_back(value.valid() ? std::optional<at::Tensor>(values[value.index()]) : std::nullopt);
  }
  return list;
}

/// Applies `change` to every floating tensor that the call returned.
template <class Change>
void change_results(std::vector<c10::IValue>& stack, Change&& change) {
  for (auto& result : stack) {
    if (result.isTensor() && result.toTensor().defined() && result.toTensor().is_floating_point()) {
      result = change(result.toTensor());
    }
  }
}

}  // namespace

OpRunner::OpRunner(const OpGraph& graph, const BatchPlan& plan, const std::vector<OpId>& ops,
                   const std::vector<ValueId>& kept, c10::Device device)
    : graph_(graph), plan_(plan), device_(device) {
  std::vector<std::int32_t> last_step(graph.values.size(), -1);
  for (const auto op : ops) {
    const auto& node = graph.op(op);
    const auto& treatment = plan.treatment(op);
    Step step;
    step.op = op;
    step.grad = node.grad_enabled;
    step.plain = treatment.weighted_arguments.empty() && !treatment.scale_output && treatment.count < 0 &&
                 treatment.reduction_argument < 0 && !treatment.replace_squeeze && treatment.draw == Draw::kNone &&
                 treatment.batch_norm < 0;
    const auto position = static_cast<std::int32_t>(steps_.size());
    const auto touch = [&](ValueId value) { last_step[value.index()] = position; };
    for_each_input(node, touch);
    for_each_output(node, touch);
    steps_.push_back(std::move(step));
  }
  for (const auto value : kept) last_step[value.index()] = -1;
  for (std::size_t value = 0; value < last_step.size(); ++value) {
    if (last_step[value] >= 0) steps_[static_cast<std::size_t>(last_step[value])].dead.push_back(ValueId::of(value));
  }
}

const OpRunner::Arguments& OpRunner::arguments_for(const ShareContext& share) {
  auto [entry, is_new] = arguments_.try_emplace({share.samples, share.batch});
  if (!is_new) return entry->second;
  for (const auto& step : steps_) {
    const auto& node = graph_.op(step.op);
    auto arguments = node.args;
    solve_integers(node, share, arguments);
    retarget(node, device_, arguments);
    const auto& treatment = plan_.treatment(step.op);
    if (treatment.reduction_argument >= 0) {
      arguments[static_cast<std::size_t>(treatment.reduction_argument)] = static_cast<std::int64_t>(at::Reduction::Sum);
    }
    entry->second.push_back(std::move(arguments));
  }
  return entry->second;
}

void OpRunner::push_arguments(const Step& step, const std::vector<c10::IValue>& arguments, const Environment& values) {
  stack_.assign(arguments.begin(), arguments.end());
  for (const auto& slot : graph_.op(step.op).inputs) {
    auto& argument = stack_[static_cast<std::size_t>(slot.position)];
    if (slot.kind != SlotKind::kTensor) {
      argument = tensor_list(slot, values);
    } else if (slot.values[0].valid()) {
      argument = values[slot.values[0].index()];
    }
  }
}

void OpRunner::store_results(const OpNode& node, Environment& values) {
  for (const auto& slot : node.outputs) {
    auto& result = stack_[static_cast<std::size_t>(slot.position)];
    if (slot.kind == SlotKind::kTensor) {
      if (slot.values[0].valid()) values[slot.values[0].index()] = std::move(result).toTensor();
      continue;
    }
    const auto list = result.toTensorVector();
    AUTOPAR_ASSERT(list.size() == slot.values.size(), "an operator returned another number of tensors than captured");
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (slot.values[i].valid()) values[slot.values[i].index()] = list[i];
    }
  }
}

void OpRunner::run(Environment& values, const ShareContext& share, std::vector<NormSample>* statistics) {
  const bool grad_allowed = at::GradMode::is_enabled();
  const auto& arguments = arguments_for(share);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto& step = steps_[i];
    const auto& node = graph_.op(step.op);
    const at::AutoGradMode mode(grad_allowed && step.grad);
    try {
      push_arguments(step, arguments[i], values);
      if (step.plain) {
        node.op.callBoxed(stack_);
      } else {
        run_treated(step, share, statistics);
      }
      store_results(node, values);
    } catch (const c10::Error& error) {
      throw Error(graph_.describe(step.op) + " failed on " + std::to_string(share.samples) +
                  " samples: " + error.what_without_backtrace());
    }
    for (const auto value : step.dead) values[value.index()].reset();
  }
  stack_.clear();
}

void OpRunner::run_treated(const Step& step, const ShareContext& share, std::vector<NormSample>* statistics) {
  const auto& node = graph_.op(step.op);
  const auto& treatment = plan_.treatment(step.op);
  weigh_arguments(treatment, share);
  if (treatment.batch_norm >= 0) {
    const auto index = static_cast<std::size_t>(treatment.batch_norm);
    NormSample unused;
    call_batch_norm(node, plan_.batch_norms[index], share, statistics ? (*statistics)[index] : unused);
  } else {
    call(node, step, treatment, share);
  }
  if (treatment.count >= 0) {
    AUTOPAR_ASSERT(share.counts != nullptr, "a loss was run before its targets were counted");
    const auto& count = (*share.counts)[static_cast<std::size_t>(treatment.count)];
    change_results(stack_, [&](const at::Tensor& result) { return result.div(count.to(result.options())); });
  }
  if (treatment.scale_output && share.samples != share.batch) {
    change_results(stack_, [&](const at::Tensor& result) { return result.mul(share.weight()); });
  }
}

void OpRunner::weigh_arguments(const OpTreatment& treatment, const ShareContext& share) {
  for (const auto position : treatment.weighted_arguments) {
    auto& argument = stack_[static_cast<std::size_t>(position)];
    if (argument.isTensor()) {
      argument = argument.toTensor().mul(share.weight());
    } else {
      argument = argument.toScalar().to<double>() * share.weight();
    }
  }
}

void OpRunner::call(const OpNode& node, const Step& step, const OpTreatment& treatment, const ShareContext& share) {
  if (treatment.replace_squeeze) {
    auto squeezed = at::squeeze(stack_[0].toTensor(), treatment.squeeze_dims);
    stack_.clear();
    stack_.emplace_back(std::move(squeezed));
  } else if (treatment.draw != Draw::kNone) {
    call_random(node, step, treatment, share);
  } else {
    node.op.callBoxed(stack_);
  }
}

void OpRunner::call_random(const OpNode& node, const Step& step, const OpTreatment& treatment,
                           const ShareContext& share) {
  const auto seed = draw_seed(share.draws, step.op, treatment.draw == Draw::kPerShare ? share.first_sample : -1);
  if (const auto position = argument_named(node, "generator"); position >= 0) {
    stack_[static_cast<std::size_t>(position)] = make_generator(device_, seed);
    node.op.callBoxed(stack_);
    return;
  }
  const auto name = base_name(node);
  const bool is_dropout = name == "dropout" || name == "dropout_";
  if (!is_dropout) {
    const DefaultGeneratorGuard guard(device_, seed);
    node.op.callBoxed(stack_);
    return;
  }
  // libtorch's own formula (aten/src/ATen/native/Dropout.cpp), with a generator of our own.
  const auto input = stack_[0].toTensor();
  const auto p = stack_[1].toDouble();
  if (!stack_[2].toBool() || p == 0 || input.numel() == 0) {
    node.op.callBoxed(stack_);
    return;
  }
  const auto keep = p == 1 ? at::zeros_like(input)
                           : at::empty_like(input).bernoulli_(1 - p, make_generator(device_, seed)).div_(1 - p);
  stack_.clear();
  stack_.emplace_back(name == "dropout_" ? input.mul_(keep) : input.mul(keep));
}

// With momentum 1 the operator leaves the share's own statistics in its running buffers, at no cost.
void OpRunner::call_batch_norm(const OpNode& node, const BatchNormPlan& norm, const ShareContext& share,
                               NormSample& sample) {
  if (!norm.running_mean.valid()) {
    node.op.callBoxed(stack_);
    return;
  }
  const auto mean_at = argument_named(node, "running_mean"), var_at = argument_named(node, "running_var");
  const auto momentum_at = argument_named(node, "momentum");
  AUTOPAR_ASSERT(mean_at >= 0 && var_at >= 0 && momentum_at >= 0, "a batch norm has no running statistics to replace");
  const auto mean = at::zeros_like(stack_[static_cast<std::size_t>(mean_at)].toTensor());
  const auto variance = at::zeros_like(mean);
  stack_[static_cast<std::size_t>(mean_at)] = mean;
  stack_[static_cast<std::size_t>(var_at)] = variance;
  stack_[static_cast<std::size_t>(momentum_at)] = 1.0;
  node.op.callBoxed(stack_);

  sample.count = static_cast<double>(norm.samples.at(share.samples));
  sample.mean = mean.to(at::kDouble);
  // The operator's is the unbiased one, which one element does not have.
  sample.variance = sample.count > 1 ? variance.to(at::kDouble).mul_((sample.count - 1) / sample.count)
                                     : at::zeros_like(sample.mean);
}

}  // namespace autopar
