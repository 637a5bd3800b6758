#include <algorithm>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>

#include "capture/algebra/analysis.hpp"
#include "capture/ir/shown_name.hpp"

namespace autopar::algebra {
namespace {

bool has_operand(const OpCall& op, BatchKind kind) {
  const auto operands = op.tensors();
  return std::any_of(operands.begin(), operands.end(), [&](ValueId value) { return op.type(value).is(kind); });
}

bool sample_index_is_misused(const OpCall& op) {
  if (has_operand(op, BatchKind::kRowStart)) return !op.def().has(OpTrait::kTakesRowStarts);
  if (!has_operand(op, BatchKind::kSampleIndex)) return false;
  if (op.def().has(OpTrait::kTakesSampleNumbers)) return op.type(op.first_tensor()).is(BatchKind::kSampleIndex);
  return !op.def().has(OpTrait::kKeepsSampleNumbers);
}

bool grows_with_batch(const OpCall& op) {
  for (std::size_t k = 0; k < op.results().size(); ++k) {
    if (!type_by_sizes(op.result_sizes(k)).is(BatchKind::kReplicated)) return true;
  }
  return false;
}

/// Typing rule of an op with partial sums among its operands.
BatchTyping type_over_sums(const OpCall& op) {
  const auto& def = op.def();
  const bool is_collective = ir::collective_named(op.node().op.schema().name()) != nullptr;
  if (is_collective) return def.over_sums(op);
  if (ops::sum_operands(op).samples) return BatchTyping::needs_sum("it uses a sum over all samples for each sample");
  if (!type_by_sizes(op.result_sizes()).is(BatchKind::kReplicated) || op.has_batch_sizes())
    return BatchTyping::needs_sum("it spreads a sum over all samples over the batch");
  return def.over_sums ? def.over_sums(op) : ops::linear_in_sum(op, false);
}

}  // namespace

Analysis::Analysis(const OpGraph& graph, const AlgebraOptions& options)
    : graph_(graph), options_(options), facts_(graph, options) {
  plan_.values.assign(graph.values.size(), BatchType::replicated());
  plan_.ops.assign(graph.ops.size(), {});
  summed_early_.assign(graph.values.size(), false);
  known_early_.assign(graph.values.size(), false);
  forced_whole_.assign(graph.ops.size(), false);
}

bool Analysis::type_all() {
  plan_.ops.assign(graph_.ops.size(), {});
  plan_.counts.clear();
  plan_.batch_norms.clear();
  is_epilogue_.assign(graph_.ops.size(), false);
  plan_.depends_on_samples.assign(graph_.values.size(), false);
  for (std::size_t i = 0; i < graph_.values.size(); ++i) {
    const auto& info = graph_.values[i];
    if (!info.is_leaf()) continue;
    plan_.values[i] = type_by_sizes(info.sizes);
    plan_.depends_on_samples[i] = plan_.values[i].is_batched();
    if (plan_.values[i].is(BatchKind::kWhole)) {
      throw CaptureError("argument " + std::to_string(info.position), "",
                         "more than one of its dims grows with the batch; exactly one may: give forward the samples, "
                         "and compute there what has two (torch::matmul(a, b.t()))");
    }
  }
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    if (facts_.live[i] && !type_op(OpId::of(i))) return false;
  }
  return true;
}

bool Analysis::type_op(OpId id) {
  const OpCall op(graph_, plan_.values, options_, id);
  refuse_writes(op);
  bool again = false;
  auto result = decide(op, again);
  if (again) return false;
  const bool is_typed = result.verdict == Verdict::kTyped;
  const bool fits = is_typed && (result.handling.whole_batch || fits_sizes(op, result));
  if (!fits && is_without_elements(op)) {
    result = typed(op, BatchType::replicated());
    for (std::size_t k = 0; k < op.results().size(); ++k) result.outputs[k] = type_by_sizes(op.result_sizes(k));
  } else if (!is_typed) {
    result = whole_batch(op, result.reason);
  } else if (!fits) {
    result = whole_batch(op, "the sizes of its result do not follow the samples");
  }
  if (!result.handling.whole_batch && leaves_aliases_stale(op, result)) {
    if (force_operands_whole(op)) return false;
    result = whole_batch(op, "it changes what a tensor means that is read elsewhere");
  }
  if (result.count && !may_be_prologue(result.count->target)) {
    result = whole_batch(op, "which targets count depends on parameters or random numbers");
  }
  if (result.count && result.count->weight.valid() && facts_.provenance(result.count->weight).parameters) {
    result = whole_batch(op, "its class weights depend on parameters");
  }
  apply(op, result);
  return true;
}

BatchTyping Analysis::decide(const OpCall& op, bool& again) {
  const auto& def = op.def();
  if (forced_whole_[op.id().index()]) {
    return whole_batch(op, "its result is not linear in a sum over all samples and is used for each sample");
  }
  if (const auto fault = def.fault ? def.fault(op) : std::string(); !fault.empty())
    throw CaptureError(ir::shown_name(graph_, op.id()), op.node().path, fault);
  if (has_operand(op, BatchKind::kWhole)) return whole_batch(op, "its operand exists only for the whole batch");
  if (has_operand(op, BatchKind::kStatistic)) return whole_batch(op, "it reads a batch statistic");
  if (has_operand(op, BatchKind::kEpilogue)) return decide_epilogue(op, again);
  if (has_operand(op, BatchKind::kPartialSum) && !def.has(OpTrait::kReadsSizesOnly)) return decide_over_sums(op, again);
  if (sample_index_is_misused(op)) return whole_batch(op, "it computes with the number of a sample within the batch");
  if (op.has_batch_sizes() && !def.has(OpTrait::kTakesBatchSizes))
    return whole_batch(op, "its arguments follow the batch size");

  const bool samples = has_operand(op, BatchKind::kBatched) || has_operand(op, BatchKind::kSampleIndex) ||
                       has_operand(op, BatchKind::kRowStart);
  if (!samples && !grows_with_batch(op) && !op.has_batch_sizes()) {
    if (op.tensor("running_mean").valid() && ops::updates_statistics(op))
      return whole_batch(op, "it updates statistics of a tensor without samples");
    return typed(op, BatchType::replicated());
  }
  if (!samples && !def.has(OpTrait::kMakesBatchDim)) {
    return whole_batch(op, !def.is_known() ? "autopar does not know how it treats samples"
                                           : "its result depends on where samples are in the batch");
  }
  return ops::type_over_samples(op);
}

BatchTyping Analysis::decide_over_sums(const OpCall& op, bool& again) {
  auto result = type_over_sums(op);
  if (result.verdict == Verdict::kTyped) return result;
  for (const auto value : op.tensors()) {
    if (!op.type(value).is(BatchKind::kPartialSum) || !may_be_prologue(value)) continue;
    summed_early_[value.index()] = true;
    again = true;
  }
  if (again) return result;
  if (may_be_epilogue(op)) return epilogue(op);
  return whole_batch(op, result.reason);
}

BatchTyping Analysis::decide_epilogue(const OpCall& op, bool& again) {
  if (may_be_epilogue(op)) return epilogue(op);
  again = force_operands_whole(op);
  return {};
}

/// What runs in a stage cannot read what is made after all of them. @return whether it would
bool Analysis::force_operands_whole(const OpCall& op) {
  bool any = false;
  for (const auto value : op.tensors()) {
    if (!op.type(value).is(BatchKind::kEpilogue)) continue;
    force_whole(value);
    any = true;
  }
  return any;
}

BatchTyping Analysis::epilogue(const OpCall& op) const { return typed(op, BatchType::of(BatchKind::kEpilogue)); }

// Replayed on every rank with the completed sums: nothing of a single sample, nothing random, nothing that outlives it
// but a buffer that it writes in place.
bool Analysis::may_be_epilogue(const OpCall& op) const {
  if (draws(op) || op.has_batch_sizes() || grows_with_batch(op)) return false;
  for (const auto storage : op.node().writes) {
    const auto leaf = facts_.leaf_of_storage[storage.index()];
    if (!leaf.valid()) continue;
    if (graph_.value(leaf).kind != ValueKind::kBuffer || op.def().has(OpTrait::kRunningStatistics)) return false;
  }
  const auto is_read_by_stages = [&](ValueId parameter) {  // from there a parameter gets here
    for (std::size_t i = 0; i < op.id().index(); ++i) {
      const auto operands = OpCall(graph_, plan_.values, options_, OpId::of(i)).tensors();
      if (facts_.live[i] && !is_epilogue_[i] && std::count(operands.begin(), operands.end(), parameter) > 0)
        return true;
    }
    return false;
  };
  for (const auto value : op.tensors()) {
    const auto& type = op.type(value);
    if (type.is(BatchKind::kPartialSum) || type.is(BatchKind::kEpilogue)) continue;
    if (!type.is(BatchKind::kReplicated)) return false;
    if (graph_.value(value).kind == ValueKind::kParameter && !is_read_by_stages(value)) return false;
    const auto from = facts_.provenance(value);
    const bool constant = !from.inputs && !from.parameters && !from.buffers && !from.random;
    if (!constant && !summed_early_[value.index()] && !op.is_floating(value)) return false;
  }
  return true;
}

// Computable before the pipeline, on every rank, and without a gradient.
bool Analysis::may_be_prologue(ValueId value) const {
  const auto from = facts_.provenance(value);
  if (from.parameters || from.random || graph_.value(value).requires_grad) return false;
  const auto ops = facts_.cone({value});
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!ops[i]) continue;
    if (plan_.ops[i].whole_batch || is_epilogue_[i]) return false;
    for (const auto storage : graph_.ops[i].writes) {
      if (facts_.leaf_of_storage[storage.index()].valid()) return false;
    }
    bool reads_written_leaf = false;
    for_each_input(graph_.ops[i], [&](ValueId input) {
      const auto storage = graph_.value(input).storage;
      reads_written_leaf = reads_written_leaf || (storage.valid() && facts_.written_storage[storage.index()]);
    });
    if (reads_written_leaf) return false;
  }
  return true;
}

void Analysis::force_whole(ValueId epilogue_value) {
  const auto ops = facts_.cone({epilogue_value});
  bool any = false;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!ops[i] || !is_epilogue_[i]) continue;
    forced_whole_[i] = true;
    any = true;
  }
  AUTOPAR_ASSERT(any, "an epilogue value has an epilogue op");
}

// One slice holds everything: sums are complete, sample numbers are right. Results that have a batch dim can be dealt
// out again, sample-major unless an operand of the same size shows another layout.
BatchTyping Analysis::whole_batch(const OpCall& op, const std::string& reason) const {
  BatchTyping result = typed(op, BatchType::replicated());
  result.handling.whole_batch = true;
  result.handling.reason = reason;
  for (std::size_t k = 0; k < op.results().size(); ++k) {
    auto type = type_by_sizes(op.result_sizes(k));
    for (const auto operand : op.tensors()) {
      const auto& other = op.type(operand);
      if (type.is_batched() && other.is_batched() && other.outer * other.inner == type.outer * type.inner) {
        type = BatchType::batched(type.dim, other.outer, other.inner);
        break;
      }
    }
    result.outputs[k] = type;
  }
  return result;
}

/// Results without elements are right whatever becomes of samples. What is written in place may be read as another
/// type.
bool Analysis::is_without_elements(const OpCall& op) const {
  if (op.results().empty() || op.written_argument() >= 0) return false;
  for (std::size_t k = 0; k < op.results().size(); ++k) {
    const auto& sizes = op.result_sizes(k);
    if (has_elements(sizes) || type_by_sizes(sizes).is(BatchKind::kWhole)) return false;
  }
  return true;
}

bool Analysis::fits_sizes(const OpCall& op, const BatchTyping& result) const {
  AUTOPAR_ASSERT(result.outputs.size() == op.results().size(), "a rule types every result");
  for (std::size_t k = 0; k < result.outputs.size(); ++k) {
    const auto& type = result.outputs[k];
    const auto& sizes = op.result_sizes(k);
    if (type.is(BatchKind::kWhole)) return false;
    const auto dims = batch_dims(sizes);
    if (!type.has_samples()) {
      if (!dims.empty()) return false;
      continue;
    }
    if (dims.size() != 1 || dims.front() != type.dim || type.outer < 1 || type.inner < 1) return false;
    if (sizes[static_cast<std::size_t>(type.dim)] != SizeExpr{type.outer * type.inner, 0}) return false;
  }
  return true;
}

// An in-place op that turns, say, a shared tensor into a partial sum changes all views of that memory as well.
bool Analysis::leaves_aliases_stale(const OpCall& op, const BatchTyping& result) const {
  const auto at = op.written_argument();
  if (at < 0 || op.def().is_view()) return false;
  const auto written = op.tensors(at);
  if (written.empty()) return false;
  const auto& weighted = result.handling.weighted_arguments;
  const bool copied = std::find(weighted.begin(), weighted.end(), at) != weighted.end();
  if (!copied && !result.outputs.empty() && result.outputs.front() == op.type(written.front())) return false;
  const auto storage = graph_.value(written.front()).storage;
  if (!storage.valid()) return false;
  const auto leaf = facts_.leaf_of_storage[storage.index()];
  if (leaf.valid()) {  // the buffer itself must be what was written, not a view of it
    auto version = written.front();
    while (version.valid() && version != leaf) version = graph_.value(version).previous;
    if (!version.valid()) return true;
  }
  for (const auto value : facts_.values_of_storage[storage.index()]) {
    if (graph_.value(value).definer.value() < op.id().value() && facts_.last_use[value.index()] > op.id().value())
      return true;
  }
  return false;
}

void Analysis::refuse_writes(const OpCall& op) const {
  for (const auto storage : op.node().writes) {
    const auto leaf = facts_.leaf_of_storage[storage.index()];
    if (!leaf.valid()) continue;
    const auto& info = graph_.value(leaf);
    const auto& name = graph_.name(op.id());
    if (info.kind == ValueKind::kInput) {
      throw CaptureError(
          name, op.node().path,
          "it writes into argument " + std::to_string(info.position) + " of the model; write into a clone() of it");
    }
    if (info.kind == ValueKind::kParameter) {
      throw CaptureError(name, info.name,
                         "the forward writes into a parameter, of which ranks may hold parts or copies; write into it "
                         "between calls: ap::for_whole_parameters(model, fn) runs fn on each whole parameter. For "
                         "Embedding(max_norm), make it without and renormalise the rows in fn");
    }
    if (info.kind == ValueKind::kConstant) {
      throw CaptureError(
          name, op.node().path,
          "it writes into a tensor that is no argument and not registered; register_buffer it or clone() it");
    }
  }
}

void Analysis::apply(const OpCall& op, const BatchTyping& result) {
  auto& handling = plan_.ops[op.id().index()];
  handling = result.handling;
  bool samples = handling.whole_batch;
  for (const auto value : op.tensors()) samples = samples || plan_.depends_on_samples[value.index()];
  bool any_with_samples = false;
  for (std::size_t k = 0; k < result.outputs.size(); ++k) {
    const auto value = op.results()[k];
    const bool early = summed_early_[value.index()];
    plan_.values[value.index()] = early ? BatchType::replicated() : result.outputs[k];
    any_with_samples = any_with_samples || result.outputs[k].has_samples();
    plan_.depends_on_samples[value.index()] = !early && (samples || result.outputs[k].has_samples());
    if (result.outputs[k].is(BatchKind::kEpilogue)) is_epilogue_[op.id().index()] = true;
  }
  if (draws(op)) handling.draw = any_with_samples ? Draw::kPerSlice : Draw::kAlike;
  if (result.count) {
    handling.count = static_cast<std::int32_t>(plan_.counts.size());
    plan_.counts.push_back(*result.count);
  }
  if (result.batch_norm) {
    handling.batch_norm = static_cast<std::int32_t>(plan_.batch_norms.size());
    plan_.batch_norms.push_back(*result.batch_norm);
  }
}

}  // namespace autopar::algebra
