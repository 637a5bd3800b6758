#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "testing_torch/laws.hpp"

namespace autopar::testing::op_laws {

namespace {

std::vector<std::int64_t> sizes_at(const ValueInfo& value, std::int64_t batch) {
  std::vector<std::int64_t> sizes;
  for (const auto size : value.sizes) sizes.push_back(size.at(batch));
  return sizes;
}

/// Visits the results on the stack with their values in the graph.
template <class Visit>
void for_each_result(const replay::ReplayCall& call, Visit&& visit) {
  for (const auto& slot : call.node.outputs) {
    const auto& result = call.stack[static_cast<std::size_t>(slot.position)];
    for (std::size_t k = 0; k < slot.values.size(); ++k) {
      if (!slot.values[k].valid()) continue;
      visit(slot.values[k], slot.kind == SlotKind::kTensor ? result.toTensor() : result.toTensorVector().at(k));
    }
  }
}

void check_results(const CapturedExample& example, const replay::ReplayCall& call) {
  const auto batch = call.sizes.local;
  std::size_t k = 0;
  for_each_result(call, [&](ValueId id, const at::Tensor& result) {
    const auto& captured = example.graph().value(id);
    const auto place = std::to_string(k++);
    const bool is_alike = result.defined() && result.scalar_type() == captured.dtype &&
                          result.sizes() == at::IntArrayRef(sizes_at(captured, batch));
    if (is_alike) return;
    example.broken("captured results have the sizes and the element types of real ones",
                   "result " + place + " of " + std::to_string(batch) + " samples is " + form_of(result) +
                       ", and was captured as " + describe_form(captured) + "; see OpDef::shapes, or its Meta kernel");
  });
}

std::vector<RecordedCall> record(const CapturedExample& example, std::int64_t batch) {
  const at::NoGradGuard no_history;
  std::vector<RecordedCall> calls;
  replay::Replayer replayer(example.graph(), replay::all_ops(example.graph()), {}, at::kCPU);
  for (const auto id : example.calls()) {
    replayer.handle(id, [&](replay::ReplayCall& call) {
      RecordedCall made{call.id, {}, {}};
      for_each_input(call.node, [&](ValueId value) {
        made.operands[value] = call.environment[value.index()].detach().clone();  // the call may write into it
      });
      call.call_original();
      check_results(example, call);
      for_each_result(call,
                      [&](ValueId, const at::Tensor& result) { made.results.push_back(result.detach().clone()); });
      calls.push_back(std::move(made));
    });
  }
  auto values = example.environment(example.arguments(batch));
  replayer.run(values, {batch, batch});
  return calls;
}

}  // namespace

Tensors run_alone(const OpGraph& graph, OpId id, replay::Environment values, std::int64_t batch) {
  std::vector<ValueId> made;
  for_each_output(graph.op(id), [&](ValueId value) { made.push_back(value); });
  replay::Replayer(graph, {id}, made, at::kCPU).run(values, {batch, batch});
  Tensors results;
  for (const auto value : made) results.push_back(std::move(values[value.index()]));
  return results;
}

std::vector<RecordedCall> check_forms(const CapturedExample& example) {
  static_cast<void>(record(example, example.batch() - 2));
  return record(example, example.batch());
}

}  // namespace autopar::testing::op_laws
