#include "testing_torch/sliced_run.hpp"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "torch/interpret/op_interpreter.hpp"

namespace autopar::testing::op_laws {

SlicedRun::SlicedRun(const CapturedExample& example, const Arguments& arguments,
                     const std::vector<std::int64_t>& lengths)
    : example_(example),
      graph_(example.graph()),
      plan_(example.plan()),
      arguments_(arguments),
      lengths_(lengths),
      counts_(plan_.counts.size()) {}

Tensors SlicedRun::results() {
  run_prologue();
  run_stage();
  run_epilogue();
  Tensors results;
  for (const auto& output : plan_.outputs) results.push_back(result_of(output));
  return results;
}

std::vector<SlicedRun::Slice> SlicedRun::slices() const {
  std::vector<Slice> slices;
  std::int64_t first = 0;
  for (const auto length : lengths_) {
    interpret::SliceContext context{.samples = length, .batch = example_.batch(), .first_sample = first, .draws = {}};
    context.counts = &counts_;
    auto values = example_.environment(arguments_.slice(first, length));
    for (const auto& [value, tensor] : known_) values[value.index()] = tensor;
    slices.push_back({std::move(context), std::move(values)});
    first += length;
  }
  return slices;
}

void SlicedRun::run(const std::vector<OpId>& ops, const interpret::SliceContext& context,
                    replay::Environment& values) const {
  std::vector<ValueId> keep;
  for (const auto op : ops) {
    for_each_input(graph_.op(op), [&](ValueId value) { keep.push_back(value); });
    for_each_output(graph_.op(op), [&](ValueId value) { keep.push_back(value); });
  }
  std::vector<interpret::NormSample> statistics(plan_.batch_norms.size());
  interpret::OpInterpreter(graph_, plan_, ops, keep, at::kCPU).run(values, context, statistics);
}

// Each slice is the local batch of a rank.
void SlicedRun::run_prologue() {
  const at::NoGradGuard no_history;
  auto ranks = slices();
  for (const auto& level : plan_.prologue) {
    for (auto& rank : ranks) run(level.ops, rank.context, rank.values);
    for (const auto value : level.sums) {
      const auto sum = total(ranks, value);
      for (auto& rank : ranks) rank.values[value.index()] = sum;
    }
    for (const auto at : level.counts) {
      const auto index = static_cast<std::size_t>(at);
      counts_[index] = count_of(plan_.counts[index], ranks);
    }
  }
  for (const auto value : plan_.prologue_values) known_[value] = ranks.front().values[value.index()];
}

at::Tensor SlicedRun::count_of(const LossCount& count, const std::vector<Slice>& slices) const {
  at::Tensor sum;
  for (const auto& slice : slices) {
    const auto& target = slice.values[count.target.index()];
    const auto is_counted = target.ne(count.ignore_index);
    auto addend = is_counted.sum().to(at::kDouble);
    if (count.weight.valid())
      addend = slice.values[count.weight.index()].index_select(0, target.masked_select(is_counted)).sum();
    sum = sum.defined() ? sum + addend : addend;
  }
  return sum;
}

void SlicedRun::run_stage() {
  std::vector<OpId> ops;
  for (std::size_t i = 0; i < plan_.ops.size(); ++i) {
    if (plan_.ops[i].in_stage) ops.push_back(OpId::of(i));
  }
  stage_ = slices();
  for (auto& slice : stage_) run(ops, slice.context, slice.values);
}

void SlicedRun::run_epilogue() {
  late_ = example_.environment(arguments_);
  for (const auto& [value, tensor] : known_) late_[value.index()] = tensor;
  for (const auto& input : plan_.epilogue_inputs)
    late_[input.value.index()] = total(stage_, input.value, input.weighted);
  interpret::SliceContext whole{.samples = example_.batch(), .batch = example_.batch(), .first_sample = 0, .draws = {}};
  whole.counts = &counts_;
  run(plan_.epilogue, whole, late_);
}

at::Tensor SlicedRun::total(const std::vector<Slice>& slices, ValueId value, bool is_weighted) const {
  at::Tensor sum;
  for (const auto& slice : slices) {
    const auto& own = slice.values[value.index()];
    const auto addend = is_weighted ? own * slice.context.weight() : own;
    sum = sum.defined() ? sum + addend : addend;
  }
  return sum;
}

at::Tensor SlicedRun::joined(ValueId value) const {
  const auto& type = plan_.type(value);
  Tensors pieces;
  for (const auto& slice : stage_) {
    const auto& piece = slice.values[value.index()];
    pieces.push_back(piece.unflatten(type.dim, {type.outer, slice.context.samples, type.inner}));
  }
  return at::cat(pieces, type.dim + 1).flatten(type.dim, type.dim + 2);
}

at::Tensor SlicedRun::result_of(const algebra::OutputPlan& output) const {
  switch (output.kind) {
    case algebra::OutputKind::kBatched:
      return joined(output.value);
    case algebra::OutputKind::kPartialSum:
      return total(stage_, output.value);
    case algebra::OutputKind::kReplicated:
      if (output.differentiable) return total(stage_, output.value, /*is_weighted=*/true);
      return stage_.front().values[output.value.index()];
    case algebra::OutputKind::kPrologue:
    case algebra::OutputKind::kEpilogue:
    case algebra::OutputKind::kInput:
      break;
  }
  return late_[output.value.index()];
}

}  // namespace autopar::testing::op_laws
