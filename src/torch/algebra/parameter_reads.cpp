#include <autopar/torch/parameter_reads.hpp>

#include <algorithm>

namespace autopar {

std::vector<ParameterReads> parameter_reads(const OpGraph& graph, const BatchPlan& plan) {
  std::vector<ParameterReads> reads(graph.values.size());
  const auto read_itself = [&](ValueId value) {
    if (graph.value(value).kind == ValueKind::kParameter) reads[value.index()].itself = true;
  };
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto& treatment = plan.ops[i];
    if (!treatment.in_stage && !treatment.in_prologue && !treatment.in_epilogue) continue;
    if (!treatment.once) {
      for_each_input(graph.ops[i], read_itself);
      continue;
    }
    auto& copies = reads[graph.input(OpId::of(i), 0).index()].copies;
    const auto type = graph.value(graph.output(OpId::of(i))).dtype;
    if (std::find(copies.begin(), copies.end(), type) == copies.end()) copies.push_back(type);
  }
  for (const auto output : graph.outputs) read_itself(output);
  for (const auto& input : plan.epilogue_inputs) read_itself(input.value);
  for (const auto& update : plan.buffer_updates) {
    read_itself(update.result);
    for (const auto op : update.ops) for_each_input(graph.op(op), read_itself);
  }
  return reads;
}

std::vector<ValueId> copied_parameters(const OpGraph& graph, const BatchPlan& plan) {
  std::vector<ValueId> parameters(static_cast<std::size_t>(graph.storage_count), ValueId::none());
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (!plan.ops[i].once) continue;
    const auto id = OpId::of(i);
    parameters[graph.value(graph.output(id)).storage.index()] = graph.input(id, 0);
  }
  return parameters;
}

}  // namespace autopar
