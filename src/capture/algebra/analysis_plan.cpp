#include <algorithm>

#include <autopar/core/error.hpp>

#include "capture/algebra/analysis.hpp"
#include "capture/ir/casts.hpp"
#include "capture/ir/shown_name.hpp"

namespace autopar::algebra {
namespace {

bool is_constant(const Provenance& from) { return !from.inputs && !from.parameters && !from.buffers && !from.random; }

void insert_sorted(std::vector<ValueId>& values, ValueId value) {
  const auto at = std::lower_bound(values.begin(), values.end(), value);
  if (at == values.end() || *at != value) values.insert(at, value);
}

/// Whether any rank that holds the buffer can update it, whatever else it holds: stages then need not write it, but
/// where they read it afterwards.
bool follows_itself_alone(const OpGraph& graph, const BufferUpdate& update) {
  if (update.kind != BufferUpdateKind::kReplicated) return false;
  bool alone = true;
  for (const auto op : update.ops) {
    for_each_input(graph.op(op), [&](ValueId value) {
      const auto& info = graph.value(value);
      const bool is_state = info.kind == ValueKind::kParameter || info.kind == ValueKind::kBuffer;
      alone = alone && (!is_state || value == update.buffer);
    });
  }
  return alone;
}

}  // namespace

BatchSemantics Analysis::run() {
  while (!type_all()) {
  }
  find_prologue();
  find_epilogue();
  find_outputs();
  find_buffer_updates();
  find_stage_ops();
  find_parameter_casts();
  decide_loss_mode();
  return std::move(plan_);
}

// What the early sums and loss counts are computed from, and, since it costs nothing, what follows from them alone.
void Analysis::find_prologue() {
  std::vector<ValueId> roots;
  for (std::size_t i = 0; i < graph_.values.size(); ++i) {
    if (summed_early_[i]) roots.push_back(ValueId::of(i));
  }
  known_early_ = summed_early_;
  for (const auto& count : plan_.counts) {
    roots.push_back(count.target);
    if (count.weight.valid()) roots.push_back(count.weight);
  }
  auto inside = facts_.cone(roots);
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    if (!facts_.live[i] || inside[i] || is_epilogue_[i] || plan_.ops[i].whole_batch) continue;
    const OpCall op(graph_, plan_.values, options_, OpId::of(i));
    const auto operands = op.tensors();
    const bool follows =
        !draws(op) && !op.has_batch_sizes() &&
        std::any_of(operands.begin(), operands.end(), [&](ValueId v) { return known_early_[v.index()]; }) &&
        std::all_of(operands.begin(), operands.end(), [&](ValueId v) {
          return known_early_[v.index()] ||
                 (op.type(v).is(BatchKind::kReplicated) && is_constant(facts_.provenance(v)));
        });
    const bool shared_memory = std::any_of(op.node().writes.begin(), op.node().writes.end(), [&](StorageId storage) {
      const auto& aliases = facts_.values_of_storage[storage.index()];
      return facts_.leaf_of_storage[storage.index()].valid() ||
             std::any_of(aliases.begin(), aliases.end(), [&](ValueId v) {
               return graph_.value(v).definer.value() < op.id().value() && facts_.last_use[v.index()] > op.id().value();
             });
    });
    const bool typed_replicated = std::all_of(op.results().begin(), op.results().end(),
                                              [&](ValueId v) { return op.type(v).is(BatchKind::kReplicated); });
    if (!follows || shared_memory || !typed_replicated) continue;
    inside[i] = true;
    const auto constants = facts_.cone(operands);
    for (std::size_t k = 0; k < i; ++k) inside[k] = inside[k] || constants[k];
    for (const auto value : op.results()) known_early_[value.index()] = true;
  }
  for (std::size_t i = 0; i < inside.size(); ++i) plan_.ops[i].in_prologue = inside[i];
  order_prologue();
}

// A level ends where sums are completed; an op runs as early as its operands allow, and never before an op that used
// the same memory earlier in the program.
void Analysis::order_prologue() {
  std::vector<std::size_t> value_level(graph_.values.size(), 0);
  std::vector<std::size_t> storage_level(static_cast<std::size_t>(graph_.storage_count), 0);
  auto& levels = plan_.prologue;
  const auto at_level = [&](std::size_t level) -> PrologueLevel& {
    if (levels.size() <= level) levels.resize(level + 1);
    return levels[level];
  };
  const auto read_leaf = [&](ValueId value) {
    if (graph_.value(value).kind == ValueKind::kBuffer) insert_sorted(plan_.prologue_leaves, value);
  };
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    if (!plan_.ops[i].in_prologue) continue;
    const auto& node = graph_.ops[i];
    std::size_t level = 0;
    const auto touch = [&](ValueId value, auto&& visit) {
      if (const auto storage = graph_.value(value).storage; storage.valid()) visit(storage_level[storage.index()]);
    };
    for_each_input(node, [&](ValueId value) {
      read_leaf(value);
      level = std::max(level, value_level[value.index()]);
      touch(value, [&](std::size_t& known) { level = std::max(level, known); });
    });
    at_level(level).ops.push_back(OpId::of(i));
    for_each_input(node,
                   [&](ValueId value) { touch(value, [&](std::size_t& known) { known = std::max(known, level); }); });
    for_each_output(node, [&](ValueId value) {
      const bool completed = summed_early_[value.index()];
      if (completed) at_level(level).sums.push_back(value);
      value_level[value.index()] = level + (completed ? 1 : 0);
      touch(value, [&](std::size_t& known) { known = std::max(known, level); });
    });
  }
  for (std::size_t k = 0; k < plan_.counts.size(); ++k) {
    const auto& count = plan_.counts[k];
    read_leaf(count.target);
    auto level = value_level[count.target.index()];
    if (count.weight.valid()) {
      read_leaf(count.weight);
      level = std::max(level, value_level[count.weight.index()]);
    }
    at_level(level).counts.push_back(static_cast<std::int32_t>(k));
  }
}

void Analysis::find_epilogue() {
  std::vector<bool> cloned(graph_.ops.size(), false);
  const auto add_input = [&](ValueId value, bool weighted) {
    for (const auto& input : plan_.epilogue_inputs) {
      if (input.value == value) return;
    }
    plan_.epilogue_inputs.push_back({value, weighted});
  };
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    if (!facts_.live[i] || !is_epilogue_[i]) continue;
    plan_.ops[i].in_epilogue = true;
    for_each_input(graph_.ops[i], [&](ValueId value) {
      const auto& type = plan_.values[value.index()];
      if (type.is(BatchKind::kEpilogue)) return;
      if (known_early_[value.index()]) return use_prologue_value(value);
      if (type.is(BatchKind::kPartialSum)) return add_input(value, false);
      if (graph_.value(value).kind == ValueKind::kBuffer) return insert_sorted(plan_.prologue_leaves, value);
      if (!is_constant(facts_.provenance(value))) return add_input(value, true);
      const auto constants = facts_.cone({value});
      for (std::size_t k = 0; k < constants.size(); ++k) {
        cloned[k] = cloned[k] || constants[k];
      }
    });
  }
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    plan_.ops[i].in_epilogue = plan_.ops[i].in_epilogue || cloned[i];
    if (plan_.ops[i].in_epilogue) plan_.epilogue.push_back(OpId::of(i));
  }
}

void Analysis::find_outputs() {
  for (const auto value : graph_.outputs) {
    const auto& info = graph_.value(value);
    const auto& type = plan_.type(value);
    OutputPlan output{value, OutputKind::kBatched, info.requires_grad};
    if (info.kind == ValueKind::kInput) {
      output.kind = OutputKind::kInput;
    } else if (known_early_[value.index()]) {
      output.kind = OutputKind::kPrologue;
      use_prologue_value(value);
    } else if (type.is_batched()) {
      output.kind = OutputKind::kBatched;
    } else if (type.is(BatchKind::kPartialSum)) {
      output.kind = OutputKind::kPartialSum;
    } else if (type.is(BatchKind::kReplicated)) {
      output.kind = OutputKind::kReplicated;
    } else if (type.is(BatchKind::kEpilogue)) {
      output.kind = OutputKind::kEpilogue;
    } else {
      const auto definer = info.definer;
      throw CaptureError(definer.valid() ? ir::shown_name(graph_, definer) : "result",
                         definer.valid() ? graph_.op(definer).path : "",
                         "the model returns a " + std::string(name_of(type.kind)) +
                             ", which is neither one row for each sample nor a sum over them; return values for each "
                             "sample, or reduce them to a loss");
    }
    plan_.outputs.push_back(output);
  }
}

// Live ops that read or write each buffer, in program order.
std::vector<std::vector<OpId>> Analysis::ops_of_buffers() const {
  std::vector<std::vector<OpId>> ops(facts_.leaf_of_storage.size());
  const auto touch = [&](StorageId storage, OpId op) {
    const auto leaf = facts_.leaf_of_storage[storage.index()];
    if (!leaf.valid() || graph_.value(leaf).kind != ValueKind::kBuffer) return;
    auto& list = ops[storage.index()];
    if (list.empty() || list.back() != op) list.push_back(op);
  };
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    if (!facts_.live[i]) continue;
    for_each_input(graph_.ops[i], [&](ValueId value) {
      if (const auto storage = graph_.value(value).storage; storage.valid()) touch(storage, OpId::of(i));
    });
    for (const auto storage : graph_.ops[i].writes) touch(storage, OpId::of(i));
  }
  return ops;
}

/// A norm in training mode whose statistics are those of the whole batch writes them, though its schema does not say
/// so.
bool Analysis::writes_buffer(OpId id, StorageId storage) const {
  const OpCall op(graph_, plan_.values, options_, id);
  const auto& writes = op.node().writes;
  if (std::find(writes.begin(), writes.end(), storage) != writes.end()) return true;
  if (!ops::updates_statistics(op)) return false;
  const auto is_here = [&](ValueId value) { return value.valid() && graph_.value(value).storage == storage; };
  return is_here(op.tensor("running_mean")) || is_here(op.tensor("running_var"));
}

void Analysis::find_buffer_updates() {
  const auto ops_of = ops_of_buffers();
  for (std::size_t s = 0; s < ops_of.size(); ++s) {
    const auto storage = StorageId::of(s);
    BufferUpdate update{facts_.leaf_of_storage[s], facts_.leaf_of_storage[s], BufferUpdateKind::kReplicated, {}};
    bool written = false;
    for (const auto id : ops_of[s]) {
      if (plan_.handling(id).batch_norm >= 0 || !writes_buffer(id, storage)) continue;
      written = true;
      for_each_output(graph_.op(id), [&](ValueId value) {
        if (graph_.value(value).previous == update.result) update.result = value;
      });
      if (plan_.handling(id).whole_batch)
        update.kind = BufferUpdateKind::kWholeBatch;
      else if (plan_.type(update.result).is(BatchKind::kPartialSum))
        update.kind = BufferUpdateKind::kPartialSum;
    }
    if (!written) continue;
    const auto last = graph_.value(update.result).definer;
    if (last.valid() && is_epilogue_[last.index()]) {  // no slice makes it, nor any part of it that needs no samples
      update.kind = BufferUpdateKind::kPartialSum;
      plan_.buffer_updates.push_back(std::move(update));
      continue;
    }
    const auto needed = facts_.cone({update.result});
    for (std::size_t i = 0; i < needed.size(); ++i) {
      if (!needed[i]) continue;
      if (plan_.ops[i].whole_batch || plan_.ops[i].collective != nullptr) update.kind = BufferUpdateKind::kWholeBatch;
      update.ops.push_back(OpId::of(i));
    }
    if (update.kind != BufferUpdateKind::kReplicated) update.ops.clear();
    plan_.buffer_updates.push_back(std::move(update));
  }
}

void Analysis::use_prologue_value(ValueId value) { insert_sorted(plan_.prologue_values, value); }

// What results, epilogue and buffers need from the pipeline, without what the prologue already knows.
void Analysis::find_stage_ops() {
  std::vector<bool> storage_needed(static_cast<std::size_t>(graph_.storage_count), false);
  std::vector<bool> value_needed(graph_.values.size(), false);
  const auto need = [&](ValueId value) {
    if (known_early_[value.index()]) return use_prologue_value(value);
    value_needed[value.index()] = true;
    if (const auto storage = graph_.value(value).storage; storage.valid()) storage_needed[storage.index()] = true;
  };
  for (const auto& output : plan_.outputs) {
    if (output.kind != OutputKind::kEpilogue && output.kind != OutputKind::kInput) need(output.value);
  }
  for (const auto& input : plan_.epilogue_inputs) need(input.value);
  auto written = facts_.written_storage;
  for (const auto& update : plan_.buffer_updates) {
    if (follows_itself_alone(graph_, update)) written[graph_.value(update.buffer).storage.index()] = false;
  }
  for (std::size_t s = 0; s < storage_needed.size(); ++s) {
    storage_needed[s] = storage_needed[s] || (written[s] && facts_.leaf_of_storage[s].valid());
  }
  for (std::size_t i = graph_.ops.size(); i-- > 0;) {
    auto& handling = plan_.ops[i];
    if (!facts_.live[i] || is_epilogue_[i]) continue;
    const auto& node = graph_.ops[i];
    bool early = true;
    bool needed = false;
    for_each_output(node, [&](ValueId value) {
      const auto storage = graph_.value(value).storage;
      needed = needed || value_needed[value.index()] || (storage.valid() && storage_needed[storage.index()]);
      early = early && known_early_[value.index()];
    });
    for (const auto storage : node.writes) needed = needed || storage_needed[storage.index()];
    if (!needed || (early && handling.in_prologue)) continue;
    handling.in_stage = true;
    for_each_input(node, need);
  }
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    auto& handling = plan_.ops[i];
    if (!handling.in_stage && !handling.in_epilogue) continue;
    const OpCall op(graph_, plan_.values, options_, OpId::of(i));
    if (op.written_argument() < 0) continue;
    const auto overwritten = op.tensors(op.written_argument());
    handling.copy_written = !overwritten.empty() && known_early_[overwritten.front().index()];
  }
}

// A cast of a parameter that nothing writes to is the same for all slices.
void Analysis::find_parameter_casts() {
  std::vector<bool> written(static_cast<std::size_t>(graph_.storage_count), false);
  const auto creators = graph_.storage_creators();
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    for (const auto storage : graph_.ops[i].writes) {
      written[storage.index()] = written[storage.index()] || creators[storage.index()] != OpId::of(i);
    }
  }
  for (const auto output : graph_.outputs) {
    if (const auto storage = graph_.value(output).storage; storage.valid()) written[storage.index()] = true;
  }
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    auto& handling = plan_.ops[i];
    if (!handling.in_stage || handling.in_prologue || !ir::casts_parameter(graph_, OpId::of(i))) continue;
    const auto copy = graph_.output(OpId::of(i));
    handling.once = !written[graph_.value(copy).storage.index()] && plan_.type(copy).is(BatchKind::kReplicated) &&
                    handling.weighted_arguments.empty() && !handling.whole_batch;
  }
}

void Analysis::decide_loss_mode() {
  std::int32_t differentiable = 0;
  for (std::size_t k = 0; k < plan_.outputs.size(); ++k) {
    const auto& output = plan_.outputs[k];
    if (!output.differentiable) continue;
    ++differentiable;
    const auto& info = graph_.value(output.value);
    const bool scalar = std::all_of(info.sizes.begin(), info.sizes.end(), [](SizeExpr s) {
      return s == SizeExpr{0, 1};
    });
    const bool is_sum = output.kind == OutputKind::kPartialSum || output.kind == OutputKind::kReplicated;
    if (scalar && is_sum && c10::isFloatingType(info.dtype)) plan_.loss = static_cast<std::int32_t>(k);
  }
  plan_.loss_mode = differentiable == 1 && plan_.loss >= 0;
  if (!plan_.loss_mode) plan_.loss = -1;
}

}  // namespace autopar::algebra

namespace autopar::algebra {

bool BatchSemantics::is_prologue(ValueId value) const {
  return std::binary_search(prologue_values.begin(), prologue_values.end(), value);
}

ValueId BatchSemantics::parameter_behind(const OpGraph& graph, ValueId value) const {
  if (!value.valid()) return value;
  const auto& info = graph.value(value);
  if (info.kind == ValueKind::kParameter) return value;
  return info.definer.valid() && handling(info.definer).once ? graph.input(info.definer, 0) : ValueId::none();
}

bool BatchSemantics::normalises_by_slice(OpId op) const {
  const auto norm = handling(op).batch_norm;
  return norm >= 0 && !batch_norms[static_cast<std::size_t>(norm)].by_sample;
}

OpId BatchSemantics::first_whole_batch_op() const {
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].in_stage && ops[i].whole_batch) return OpId::of(i);
  }
  return OpId::none();
}

BatchSemantics analyze_batch(const OpGraph& graph, const AlgebraOptions& options) {
  return algebra::Analysis(graph, options).run();
}

void require_splittable(const OpGraph& graph, const BatchSemantics& plan) {
  const auto op = plan.first_whole_batch_op();
  if (!op.valid()) return;
  throw CaptureError(ir::shown_name(graph, op), graph.op(op).path,
                     "cannot run on several micro-batches or replicas: " + plan.handling(op).reason +
                         "; allow one micro-batch and one replica for its stage, or move it out of the model");
}

}  // namespace autopar::algebra
