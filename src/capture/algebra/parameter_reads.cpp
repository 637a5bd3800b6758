#include "capture/algebra/parameter_reads.hpp"

#include <algorithm>
#include <set>

#include "capture/algebra/global_sums.hpp"
#include "capture/ir/reached_values.hpp"
#include "capture/ir/shard_moves.hpp"

namespace autopar::algebra {

namespace {

/// Whether autograd keeps what the operator reads.
bool has_history(const OpGraph& graph, const OpNode& op) {
  bool any = false;
  for_each_output(op, [&](ValueId value) { any = any || graph.value(value).requires_grad; });
  return any;
}

}  // namespace

std::vector<ParameterReads> parameter_reads(const OpGraph& graph, const BatchSemantics& plan) {
  std::vector<ParameterReads> reads(graph.values.size());
  const auto read_itself = [&](ValueId value) {
    if (graph.value(value).kind == ValueKind::kParameter) reads[value.index()].itself = true;
  };
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto& handling = plan.ops[i];
    if (!handling.in_stage && !handling.in_prologue && !handling.in_epilogue) continue;
    if (!handling.once) {
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

std::vector<bool> read_outside_stages(const OpGraph& graph, const BatchSemantics& plan) {
  std::vector<bool> read(graph.values.size(), false);
  for (const auto leaf : plan.prologue_leaves) read[leaf.index()] = true;
  for (const auto& update : plan.buffer_updates) {
    for (const auto op : update.ops) {
      for_each_input(graph.op(op), [&](ValueId value) { read[value.index()] = true; });
    }
  }
  return read;
}

std::vector<bool> read_after_computes(const OpGraph& graph, const BatchSemantics& plan,
                                      const std::vector<std::vector<ValueId>>& travelling) {
  const auto behind = parameters_behind(graph, plan);
  const auto memory_behind = [&](ValueId value) {
    const auto storage = graph.value(value).storage;
    const bool is_of_parameter = storage.valid() && behind[storage.index()].valid();
    return is_of_parameter ? graph.value(behind[storage.index()]).storage : storage;
  };
  std::set<StorageId> storages;
  const auto note = [&](ValueId value) { storages.insert(memory_behind(value)); };
  for (const auto& values : travelling) std::for_each(values.begin(), values.end(), note);
  for (const auto& sum : global_sums(graph, plan)) note(sum.value);
  for (const auto& update : plan.buffer_updates) note(update.result);
  std::set<StorageId> trained;
  for (const auto& [name, value] : graph.parameters) {
    if (graph.value(value).requires_grad) trained.insert(graph.value(value).storage);
  }
  for (const auto& op : graph.ops) {
    for_each_input(op, [&](ValueId value) {
      const auto& info = graph.value(value);
      if (trained.count(memory_behind(value)) == 0) return;
      if (op.op.schema().is_mutable() || (!info.requires_grad && has_history(graph, op))) note(value);
    });
  }
  std::vector<bool> read(graph.values.size(), false);
  for (const auto& [name, value] : graph.parameters)
    read[value.index()] = storages.count(graph.value(value).storage) > 0;
  return read;
}

std::vector<int> highest_zero_levels(const OpGraph& graph, const BatchSemantics& plan,
                                     const std::vector<std::vector<ValueId>>& travelling) {
  const auto outside = read_outside_stages(graph, plan), late = read_after_computes(graph, plan, travelling);
  const auto reads = parameter_reads(graph, plan);
  std::vector<int> levels(graph.values.size(), 3);
  for (const auto& [name, value] : graph.parameters) {
    const auto& read = reads[value.index()];
    // Casts are made once a call, and so of what is there for all of it.
    const bool is_cast = !read.copies.empty() && !read.smaller_copy(graph.value(value).dtype);
    levels[value.index()] = outside[value.index()] ? 0 : late[value.index()] || is_cast ? 2 : 3;
  }
  return levels;
}

std::vector<ValueId> parameters_behind(const OpGraph& graph, const BatchSemantics& plan) {
  std::vector<ValueId> parameters(static_cast<std::size_t>(graph.storage_count), ValueId::none());
  for (const auto& [name, value] : graph.parameters) {
    if (graph.value(value).storage.valid()) parameters[graph.value(value).storage.index()] = value;
  }
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto id = OpId::of(i);
    if (!plan.ops[i].once && !ir::is_shard_move(graph.name(id))) continue;
    const auto from = graph.value(graph.input(id, 0)).storage, to = graph.value(graph.output(id)).storage;
    if (from.valid()) parameters[to.index()] = parameters[from.index()];
  }
  return parameters;
}

std::map<ValueId, OpId> last_reads(const OpGraph& graph, const BatchSemantics& plan) {
  const auto behind = parameters_behind(graph, plan);
  std::map<ValueId, OpId> last;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (plan.ops[i].once) continue;
    for_each_input(graph.ops[i], [&](ValueId value) {
      const auto storage = graph.value(value).storage;
      if (storage.valid() && behind[storage.index()].valid()) last[behind[storage.index()]] = OpId::of(i);
    });
  }
  return last;
}

std::vector<bool> reached_parameters(const OpGraph& graph, const std::vector<ValueId>& roots) {
  auto reached = ir::reached_values(graph, roots);
  for (std::size_t i = 0; i < reached.size(); ++i) {
    reached[i] = reached[i] && graph.values[i].kind == ValueKind::kParameter;
  }
  return reached;
}

}  // namespace autopar::algebra
