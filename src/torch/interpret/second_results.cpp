#include "torch/interpret/second_results.hpp"

#include <algorithm>

#include "capture/ir/last_writes.hpp"
#include "ops/registry.hpp"

namespace autopar::interpret {
namespace {

struct ResultReaders {
  int count = 0;
  OpId last;
  std::int32_t argument = -1;  ///< the argument position of the last reader
};

/// The readers of each value that record gradients, in the order of a run. List elements count as readers, but never as
/// the last.
std::map<ValueId, ResultReaders> readers_of(const OpGraph& graph, const std::vector<OpId>& ops) {
  std::map<ValueId, ResultReaders> readers;
  for (const auto op : ops) {
    if (!graph.op(op).grad_enabled) continue;
    for (const auto& slot : graph.op(op).inputs) {
      for (const auto value : slot.values) {
        if (!value.valid()) continue;
        auto& of_value = readers[value];
        ++of_value.count;
        if (slot.kind != SlotKind::kTensor) continue;
        of_value.last = op;
        of_value.argument = slot.position;
      }
    }
  }
  return readers;
}

}  // namespace

SecondResults::SecondResults(const OpGraph& graph, const std::vector<OpId>& ops, const std::vector<ValueId>& keep) {
  std::vector<OpId> makers;
  std::ranges::copy_if(ops, std::back_inserter(makers),
                       [&](OpId op) { return ops::definition_of(graph.name(op)).has(OpTrait::kDuplicatedOutputs); });
  if (makers.empty()) return;
  const auto last_write = ir::last_writes(graph);
  const auto readers = readers_of(graph, ops);
  for (const auto op : makers) {
    const auto value = graph.output(op);
    const auto found = readers.find(value);
    if (found == readers.end() || !found->second.last.valid() || !graph.value(value).has_gradient()) continue;
    const bool is_kept = std::ranges::find(keep, value) != keep.end();
    const bool is_written = last_write[graph.value(value).storage.index()] != op;  // written in place by a reader of
                                                                                   // one of the two tensors
    if (is_written || found->second.count + (is_kept ? 1 : 0) < 2) continue;
    made_by_.emplace(op, value);
    read_by_[found->second.last].emplace_back(found->second.argument, value);
  }
}

void SecondResults::before(replay::ReplayCall& call) {
  const auto read = read_by_.find(call.id);
  if (read == read_by_.end()) return;
  for (const auto& [argument, value] : read->second) {
    const auto found = waiting_.find(value);
    if (found == waiting_.end()) continue;  // another run made the value
    call.stack[static_cast<std::size_t>(argument)] = std::move(found->second);
    waiting_.erase(found);
  }
}

void SecondResults::after(replay::ReplayCall& call) {
  const auto made = made_by_.find(call.id);
  if (made == made_by_.end()) return;
  waiting_[made->second] = call.stack.at(1).toTensor();
  call.stack.resize(1);
}

}  // namespace autopar::interpret
