#include <algorithm>

#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping layers(const OpCall& op) {
  if (!op.has("batch_first")) return BatchTyping::mixes("packed sequences join the batch in one dim");
  const auto input = op.tensor("input");
  const auto& type = op.type(input);
  const auto sequence_dim = op.flag("batch_first", false) ? 0 : 1;
  if (op.rank(input) != 3 || !type.is_batched() || type.dim != sequence_dim) {
    return BatchTyping::mixes("its sequence runs over the batch");
  }
  for (const auto state : op.tensors(op.position("hx"))) {
    const auto& own = op.type(state);
    if (!own.is_batched() || own.dim != 1 || !own.same_layout(type)) {
      return BatchTyping::mixes("its first state is not one for each sample");
    }
  }
  for (const auto weight : op.tensors(op.position("params"))) {
    if (op.type(weight).has_samples()) return BatchTyping::mixes("its weights have samples");
  }
  BatchTyping result = typed(op, type.at_dim(1));
  result.outputs.front() = type;
  return result;
}

BatchTyping cell(const OpCall& op) {
  if (op.rank(op.first_tensor()) < 2) return BatchTyping::mixes("its samples are not in dim 0");
  static const auto in_front = samples_first(2);
  return in_front(op);
}

bool draws_between_layers(const OpCall& op) {
  const bool drops = !op.has("dropout") || op.number("dropout", 1) != 0;
  return op.flag("train", true) && drops && op.integer("num_layers", 2) > 1;
}

std::optional<Affine> flops_of_layers(const OpCall& op) {
  double weights = 0;
  for (const auto weight : op.tensors(op.position("params"))) {
    if (op.rank(weight) == 2) weights += elements_at(op.sizes(weight), 1);
  }
  return rows_of(op.sizes(op.first_tensor())) * (2 * weights);
}

std::optional<Affine> flops_of_cell(const OpCall& op) {
  const auto operands = op.tensors();
  double weights = 0;
  for (std::size_t i = 1; i < operands.size(); ++i) {
    if (requires_grad(op, operands[i]) && !op.type(operands[i]).has_samples() && op.rank(operands[i]) == 2)
      weights += elements_at(op.sizes(operands[i]), 1);
  }
  return rows_of(op.sizes(operands[0])) * (2 * weights);
}

/// Bytes internal to the op: saved for the backward, and used while each direction runs.
struct LayersMemory {
  Affine saved, forward, backward;
};

// Fitted to 600 measurements of cuDNN 9 on an H200: its reserve, its workspace, and a copy of the weights. cuDNN copies
// them because it needs them in one block.
LayersMemory memory_of_layers_on_cuda(const OpCall& op) {
  const Affine of_result = bytes_of(op.graph(), op.results().front());
  const double layers = op.number("num_layers", 1);
  constexpr double kFixedOfLayer = 8 << 20;
  Affine weights;
  for (const auto weight : op.tensors(op.position("params"))) weights += bytes_of(op.graph(), weight);
  const double kept_by_layer = op.base_name() == "lstm" ? 6 : op.base_name() == "gru" ? 7 : 2;
  const Affine working = of_result * 8.0 + weights * 2.0 + Affine{0, kFixedOfLayer * layers};
  return {of_result * (kept_by_layer * layers - 1) + weights, working, working};
}

LayersMemory memory_of_layers(const OpCall& op) {
  if (op.on_cuda()) return memory_of_layers_on_cuda(op);
  const auto result = op.results().front(), input = op.tensors().front();
  const Affine of_result = bytes_of(op.graph(), result), of_input = bytes_of(op.graph(), input);
  const double directions = op.flag("bidirectional", false) ? 2 : 1, layers = op.number("num_layers", 1);
  const double hidden = static_cast<double>(last_size(op.sizes(result))) / directions;
  const double width = std::max(1.0, static_cast<double>(last_size(op.sizes(input))) / std::max(1.0, hidden));
  // Measured on libtorch 2.11, for one to three layers and one or both directions, in units of the result's size.
  double saved = 0, forward = 0, backward = 0;
  if (op.base_name() == "lstm") {  // oneDNN's workspace; part of it is as wide as the layer's input
    saved = 10.7 * layers + 6.1 * (width + directions * (layers - 1)) + 1.1 * (directions - 1) * (layers - 1);
    forward = backward = 6.3 / directions;
  } else if (op.base_name() == "gru") {
    saved = 8 * layers;
    forward = 3.1;
  } else {
    saved = 2.1 * layers;
    forward = 1.5;
  }
  if (op.flag("train", true) && op.number("dropout", 0) > 0) saved += layers - 1;
  return {of_result * (saved - 1) + of_input * directions, of_result * forward, of_result * backward};
}

std::vector<ValueId> operands_and_results(const OpCall& op) {
  auto values = op.tensors();
  values.insert(values.end(), op.results().begin(), op.results().end());
  return values;
}

SavedBytes saved_by_layers(const OpCall& op) { return {operands_and_results(op), memory_of_layers(op).saved}; }

/// Gates, cell states and hidden states.
SavedBytes saved_by_cell(const OpCall& op) {
  return {operands_and_results(op), bytes_of(op.graph(), op.results().front()) * 6};
}

OpWorkspace workspace_of_layers(const OpCall& op) {
  const auto memory = memory_of_layers(op);
  return {memory.forward, memory.backward};
}

}  // namespace

void add_recurrent(OpList& list) {
  OpDef def;
  def.op_class = OpClass::kMatmul;
  def.keeps_result = true;
  def.treatment = kPerSample;
  def.over_samples = layers;
  def.draws = draws_between_layers;
  def.flops = flops_of_layers;
  def.saved_by = saved_by_layers;
  def.workspace = workspace_of_layers;
  def.summary = "rows of a sample with rows of the same sample; mixes else";
  list.add(def, {"lstm", "gru", "rnn_tanh", "rnn_relu"});

  OpDef one;
  one.op_class = OpClass::kMatmul;
  one.keeps_result = true;
  one.treatment = kPerSample;
  one.traits = OpTrait::kTakesBatchSizes;
  one.over_samples = cell;
  one.flops = flops_of_cell;
  one.saved_by = saved_by_cell;
  one.summary = "samples are dim 0 (convolutions: or groups of channels); mixes else";
  list.add(one, {"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"});
}

}  // namespace autopar::ops
