#include "torch/passes/linear_fold.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "capture/ir/compact.hpp"
#include "capture/ir/value_uses.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"

namespace autopar::passes {
namespace {

struct Fold {
  OpId transpose, product, bias_addition;  ///< bias_addition: none unless it is a separate op
  ValueId input, weight, bias, result;
  bool casts_bias = false;  ///< the bias has a wider type than the weight, and is added in place

  [[nodiscard]] OpId last() const { return bias_addition.valid() ? bias_addition : product; }
};

bool is_one(const c10::IValue& scalar) { return scalar.isScalar() && scalar.toScalar().equal(1); }

bool fits(const ValueInfo& bias, const ValueInfo& weight) {
  return bias.sizes.size() == 1 && bias.sizes[0] == weight.sizes[0];
}

bool is_vector_of(const ValueInfo& bias, const ValueInfo& weight) {
  return fits(bias, weight) && bias.dtype == weight.dtype;
}

bool depends_on_batch(const ValueInfo& info) {
  return std::any_of(info.sizes.begin(), info.sizes.end(), [](SizeExpr size) { return size.depends_on_batch(); });
}

/// Matches product + bias, bias + product or product += bias, where nothing else uses the product.
void match_bias_addition(const OpGraph& graph, const ir::ValueUses& facts, bool may_cast, Fold& fold) {
  const auto product = graph.output(fold.product);
  const auto addition = facts.only_use(product);
  if (!addition.valid() || graph.overload(addition) != "Tensor") return;
  const bool in_place = graph.is(addition, ops::kAddInPlace);
  if (!in_place && !graph.is(addition, ops::kAdd)) return;
  if (!is_one(graph.op(addition).args[2])) return;
  const auto left = graph.input(addition, 0), right = graph.input(addition, 1);
  const auto bias = left == product ? right : (in_place ? ValueId::none() : left);
  if (!bias.valid() || !fits(graph.value(bias), graph.value(fold.weight))) return;
  // Under autocast libtorch's linear layers add a bias in single precision to a product of 16 bits, in place.
  const auto &given = graph.value(bias), &weight = graph.value(fold.weight);
  const bool is_wider = c10::isReducedFloatingType(weight.dtype) && given.dtype == at::kFloat;
  const bool comes_first = !given.definer.valid() || given.definer < fold.product;
  fold.casts_bias = may_cast && is_wider && in_place && comes_first;
  if (given.dtype != weight.dtype && !fold.casts_bias) return;
  fold.bias_addition = addition;
  fold.bias = bias;
}

std::optional<Fold> match(const OpGraph& graph, const ir::ValueUses& facts, bool may_cast, OpId transpose) {
  if (!graph.is(transpose, ops::kTransposed)) return std::nullopt;
  Fold fold;
  fold.transpose = transpose;
  fold.weight = graph.input(transpose, 0);
  const auto transposed = graph.output(transpose);
  fold.product = facts.only_use(transposed);
  if (!fold.product.valid() || graph.value(fold.weight).sizes.size() != 2) return std::nullopt;
  const auto& product = graph.op(fold.product);
  if (graph.is(fold.product, ops::kAddmm) && graph.overload(fold.product).empty()) {
    fold.bias = graph.input(fold.product, 0);
    fold.input = graph.input(fold.product, 1);
    if (graph.input(fold.product, 2) != transposed || !is_one(product.args[3]) || !is_one(product.args[4]) ||
        !is_vector_of(graph.value(fold.bias), graph.value(fold.weight))) {
      return std::nullopt;
    }
  } else if (graph.is(fold.product, ops::kMatmul) && graph.overload(fold.product).empty()) {
    fold.input = graph.input(fold.product, 0);
    if (graph.input(fold.product, 1) != transposed || graph.value(fold.input).sizes.size() < 2) return std::nullopt;
    match_bias_addition(graph, facts, may_cast, fold);
  } else {
    return std::nullopt;
  }
  if (fold.input == transposed || fold.bias == transposed) return std::nullopt;
  if (!depends_on_batch(graph.value(fold.input)) || depends_on_batch(graph.value(fold.weight))) return std::nullopt;
  fold.result = graph.output(fold.last());
  const bool grad = graph.op(transpose).grad_enabled;
  for (auto op : {fold.product, fold.last()}) {
    if (graph.op(op).grad_enabled != grad) return std::nullopt;
  }
  for (auto operand : {fold.input, fold.weight, fold.bias}) {
    if (operand.valid() && facts.written_between(operand, transpose, fold.last())) return std::nullopt;
  }
  return fold;
}

OpNode linear_node(const OpGraph& graph, const Fold& fold) {
  static const auto op = ops::operator_named(ops::kLinear);
  const auto& last = graph.op(fold.last());
  const auto product = graph.value(graph.output(fold.product)).storage;
  OpNode node{op, std::vector<c10::IValue>(3)};
  node.inputs = {{0, SlotKind::kTensor, {fold.input}}, {1, SlotKind::kTensor, {fold.weight}}};
  if (fold.bias.valid()) node.inputs.push_back({2, SlotKind::kTensor, {fold.bias}});
  node.outputs = {{0, SlotKind::kTensor, {fold.result}}};
  node.grad_enabled = last.grad_enabled;
  for (auto id : {fold.transpose, fold.product, fold.last()}) {
    for (auto storage : graph.op(id).reads) {
      if (storage != graph.value(fold.result).storage && storage != product) node.reads.push_back(storage);
    }
  }
  ir::sort_storages(node.reads);
  node.writes = {graph.value(fold.result).storage};
  node.path = graph.op(fold.transpose).path;
  return node;
}

/// Casts the bias to the weight's type, at the place of the product. @return the copy
ValueId cast_bias(OpGraph& graph, const Fold& fold) {
  static const auto op = ops::operator_named(ops::kTo, "dtype");
  const auto &bias = graph.value(fold.bias), &weight = graph.value(fold.weight);
  ValueInfo copy;
  copy.dtype = weight.dtype;
  copy.sizes = bias.sizes;
  copy.strides = {SizeExpr{0, 1}};
  copy.requires_grad = bias.requires_grad;
  copy.storage = StorageId::of(static_cast<std::size_t>(graph.storage_count++));
  copy.definer = fold.product;
  OpNode node{op, {c10::IValue(), static_cast<std::int64_t>(weight.dtype), false, false, c10::IValue()}};
  const auto result = ValueId::of(graph.values.size());
  node.inputs = {{0, SlotKind::kTensor, {fold.bias}}};
  node.outputs = {{0, SlotKind::kTensor, {result}}};
  node.grad_enabled = graph.op(fold.product).grad_enabled;
  node.reads = {bias.storage};
  node.writes = {copy.storage};
  node.path = graph.op(fold.last()).path;
  graph.values.push_back(std::move(copy));
  graph.op(fold.product) = std::move(node);
  return result;
}

}  // namespace

OpGraph fold_linear(OpGraph graph, c10::DeviceType device) {
  std::vector<bool> removed(graph.ops.size(), false);
  bool has_casts = false;
  {
    const ir::ValueUses facts(graph);
    std::vector<Fold> folds;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      if (auto fold = match(graph, facts, device == c10::DeviceType::CUDA, OpId::of(i))) folds.push_back(*fold);
    }
    for (auto& fold : folds) {
      auto node = linear_node(graph, fold);
      removed[fold.transpose.index()] = true;
      if (fold.casts_bias) {
        const auto copy = cast_bias(graph, fold);
        const auto wide = graph.value(fold.bias).storage;
        std::replace(node.reads.begin(), node.reads.end(), wide, graph.value(copy).storage);
        ir::sort_storages(node.reads);
        node.inputs.back().values = {copy};
        has_casts = true;
      } else if (fold.bias_addition.valid()) {
        removed[fold.product.index()] = true;
      }
      graph.value(fold.result).previous = ValueId::none();
      graph.op(fold.last()) = std::move(node);
    }
  }
  ir::compact(graph, removed);
  if (has_casts) ir::order_values(graph);
  return graph;
}

}  // namespace autopar::passes
