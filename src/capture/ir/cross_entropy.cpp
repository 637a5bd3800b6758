#include "capture/ir/cross_entropy.hpp"

#include <algorithm>

#include "capture/ir/op_table.hpp"

namespace autopar {

bool is_last_reader_of_logits(const OpGraph& graph, OpId loss) {
  const auto storage = graph.value(graph.input(loss, CrossEntropyArgument::kLogits)).storage;
  if (!storage.valid()) return false;
  const auto is_there = [&](ValueId value) { return value.valid() && graph.value(value).storage == storage; };
  if (std::ranges::any_of(graph.outputs, is_there)) return false;
  bool has_maker = false;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto& op = graph.ops[i];
    const bool reads = std::ranges::find(op.reads, storage) != op.reads.end(),
               writes = std::ranges::find(op.writes, storage) != op.writes.end();
    if (OpId::of(i) == loss || (!reads && !writes)) continue;
    const auto& traits = traits_of(op.op);
    if (writes) {
      const bool keeps_result = traits.family == OpFamily::kUnknown || traits.saved == SavedTensors::kResult ||
                                traits.saved == SavedTensors::kInputAndResult ||
                                traits.saved == SavedTensors::kAttention || traits.saved == SavedTensors::kRecurrent;
      if (reads || has_maker || keeps_result) return false;
      has_maker = true;
    } else if (traits.op_class != OpClass::kView) {
      return false;
    }
  }
  return has_maker;
}

}  // namespace autopar
