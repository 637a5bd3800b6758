#include "torch/programs/prologue.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "torch/engine/message.hpp"

namespace autopar::programs {

namespace {

bool depends_on_samples(const OpGraph& graph, const algebra::BatchSemantics& plan, OpId op) {
  bool depends = false;
  const auto look = [&](ValueId value) {
    depends = depends || !plan.type(value).is(BatchKind::kReplicated) || plan.depends_on_samples[value.index()];
  };
  for_each_input(graph.op(op), look);
  for_each_output(graph.op(op), look);
  return depends;
}

}  // namespace

Prologue::Prologue(const OpGraph& graph, const algebra::BatchSemantics& plan, c10::Device device, Lookup lookup)
    : graph_(graph), plan_(plan), device_(device), lookup_(std::move(lookup)) {
  std::vector<ValueId> keep;
  for (const auto& level : plan.prologue) {
    for (const auto op : level.ops) {
      for_each_output(graph.op(op), [&](ValueId value) { keep.push_back(value); });
      for_each_input(graph.op(op), [&](ValueId value) { keep.push_back(value); });  // a later level may read it again
    }
  }
  for (const auto& level : plan.prologue) {
    std::vector<OpId> replicated;
    for (const auto op : level.ops) {
      if (!depends_on_samples(graph, plan, op)) replicated.push_back(op);
    }
    levels_.push_back({std::make_unique<interpret::OpInterpreter>(graph, plan, level.ops, keep, device),
                       std::make_unique<interpret::OpInterpreter>(graph, plan, std::move(replicated), keep, device)});
  }
}

replay::Environment Prologue::leaves(const std::vector<at::Tensor>& inputs) const {
  replay::Environment values(graph_.values.size());
  for (const auto& level : levels_) {
    const auto constants = level.all->environment();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (constants[i].defined()) values[i] = constants[i];
    }
  }
  for (const auto leaf : plan_.prologue_leaves) values[leaf.index()] = lookup_(leaf).detach();
  for (const auto& count : plan_.counts) {
    for (const auto value : {count.target, count.weight}) {
      if (value.valid() && graph_.value(value).kind == ValueKind::kConstant) {
        values[value.index()] = graph_.value(value).constant.to(device_);
      }
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) values[graph_.inputs[i].index()] = inputs[i];
  return values;
}

at::Tensor Prologue::local_count(const LossCount& count, const replay::Environment& values, bool has_samples) const {
  if (!has_samples) return at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device_));
  const auto& target = values[count.target.index()];
  const auto counted = target.ne(count.ignore_index);
  if (!count.weight.valid()) return counted.sum().to(at::kDouble);
  const auto weights = values[count.weight.index()].to(at::kDouble);
  return weights.index_select(0, target.masked_select(counted)).sum();
}

PrologueResult Prologue::run(const std::vector<at::Tensor>& inputs, const interpret::SliceContext& local,
                             deployment::WorldSums& sums) {
  const at::NoGradGuard no_grad;
  const bool has_samples = local.samples > 0;
  auto values = leaves(inputs);
  std::vector<interpret::NormSample> norms(plan_.batch_norms.size());
  PrologueResult result;
  result.counts.resize(plan_.counts.size());
  auto slice = local;
  slice.counts = &result.counts;
  for (std::size_t l = 0; l < levels_.size(); ++l) {
    const auto& level = plan_.prologue[l];
    (has_samples ? levels_[l].all : levels_[l].replicated)->run(values, slice, norms);
    std::vector<at::Tensor> addends;
    for (const auto value : level.sums) {
      const auto& info = graph_.value(value);
      const auto options = at::TensorOptions().dtype(info.dtype).device(device_);
      addends.push_back(has_samples ? values[value.index()] : at::zeros(ir::sizes_at(info, local.batch), options));
    }
    for (const auto count : level.counts) {
      addends.push_back(local_count(plan_.counts[static_cast<std::size_t>(count)], values, has_samples));
    }
    if (addends.empty()) continue;
    const auto totals = sums.sum(addends);
    for (std::size_t i = 0; i < level.sums.size(); ++i) values[level.sums[i].index()] = totals[i];
    for (std::size_t i = 0; i < level.counts.size(); ++i) {
      result.counts[static_cast<std::size_t>(level.counts[i])] = totals[level.sums.size() + i];
    }
  }
  for (const auto value : plan_.prologue_values) result.values.emplace_back(value, values[value.index()]);
  return result;
}

}  // namespace autopar::programs
