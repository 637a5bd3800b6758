#include "torch/programs/replicated_updates.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>

#include "ops/names.hpp"

namespace autopar::programs {

namespace {

/// What `buffer += number` adds, if that is all that happens to the buffer.
std::optional<at::Scalar> step_of_counter(const OpGraph& graph, const algebra::BufferUpdate& update) {
  if (update.ops.size() != 1) return std::nullopt;
  const auto id = update.ops.front();
  const auto& node = graph.op(id);
  const bool adds = graph.is(id, ops::kAddInPlace) && node.integers.empty() && graph.input(id, 0) == update.buffer;
  if (!adds || !node.args.at(2).isScalar() || node.args[2].toScalar().toDouble() != 1) return std::nullopt;
  if (node.args[1].isScalar()) return node.args[1].toScalar();
  const auto number = graph.input(id, 1);
  if (!number.valid()) return std::nullopt;
  const auto& info = graph.value(number);
  const bool is_number = info.kind == ValueKind::kConstant && info.constant.is_cpu() && info.constant.dim() == 0;
  return is_number ? std::optional(info.constant.item()) : std::nullopt;
}

bool same(const at::Scalar& a, const at::Scalar& b) {
  return a.type() == b.type() && !a.isComplex() && a.toDouble() == b.toDouble();
}

}  // namespace

ReplicatedUpdates::ReplicatedUpdates(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                     const std::vector<const algebra::BufferUpdate*>& held, c10::Device device,
                                     Lookup lookup)
    : plan_(plan), lookup_(std::move(lookup)) {
  std::set<OpId> ops;
  std::vector<ValueId> results;
  for (const auto* update : held) {
    if (const auto step = step_of_counter(graph, *update)) {
      add_counter(graph, update->buffer, *step);
      continue;
    }
    others_.push_back(update);
    ops.insert(update->ops.begin(), update->ops.end());
    results.push_back(update->result);
  }
  if (others_.empty()) return;
  std::set<ValueId> read;
  for (const auto op : ops) {
    for_each_input(graph.op(op), [&](ValueId value) {
      const auto kind = graph.value(value).kind;
      if (kind == ValueKind::kParameter || kind == ValueKind::kBuffer) read.insert(value);
    });
  }
  read_.assign(read.begin(), read.end());
  runner_ = std::make_unique<interpret::OpInterpreter>(graph, plan, std::vector<OpId>(ops.begin(), ops.end()), results,
                                                       device);
}

void ReplicatedUpdates::add_counter(const OpGraph& graph, ValueId buffer, const at::Scalar& step) {
  const auto fits = [&](const Counters& counters) {
    return same(counters.step, step) && graph.value(counters.buffers.front()).dtype == graph.value(buffer).dtype;
  };
  const auto found = std::find_if(counters_.begin(), counters_.end(), fits);
  if (found == counters_.end())
    counters_.push_back({step, {buffer}});
  else
    found->buffers.push_back(buffer);
}

void ReplicatedUpdates::run(std::int64_t batch) {
  const at::NoGradGuard no_grad;
  run_others(batch);
  for (const auto& [step, counters] : counters_) {
    std::vector<at::Tensor> buffers;
    for (const auto counter : counters) buffers.push_back(lookup_(counter).detach());
    at::_foreach_add_(buffers, step);
  }
}

// On copies, as the forward wrote the buffers in its order.
void ReplicatedUpdates::run_others(std::int64_t batch) {
  if (others_.empty()) return;
  auto values = runner_->environment();
  std::vector<at::Tensor> read, copies;
  for (const auto value : read_) {
    read.push_back(lookup_(value).detach());
    copies.push_back(values[value.index()] = at::empty_like(read.back()));
  }
  if (!read.empty()) at::_foreach_copy_(copies, read);
  interpret::SliceContext whole;
  whole.samples = whole.batch = batch;
  std::vector<interpret::NormSample> norms(plan_.batch_norms.size());
  runner_->run(values, whole, norms);
  std::vector<at::Tensor> buffers, written;
  for (const auto* update : others_) {
    buffers.push_back(lookup_(update->buffer).detach());
    written.push_back(values[update->result.index()]);
  }
  at::_foreach_copy_(buffers, written);
}

}  // namespace autopar::programs
