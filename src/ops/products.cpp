#include <algorithm>
#include <cctype>
#include <map>

#include "ops/names.hpp"
#include "ops/op_list.hpp"
#include "ops/registry.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

/// One label per dim: dims with equal labels share an index, and labels that the result lacks are summed over.
using Labels = std::vector<int>;

/// A product of tensors, summed over some of its dims.
struct Contraction {
  std::vector<ValueId> operands;
  std::vector<Labels> labels;  ///< like operands
  Labels result;
};

/// Whether an op adds its first operand to the product: addmm and its relatives.
bool has_addend(const OpCall& op) {
  const auto name = op.base_name();
  return name == "addmm" || name == "addmv" || name == "baddbmm" || name == "addbmm";
}

constexpr int kRow = -1, kColumn = -2, kSummed = -3;  // other labels: broadcast dims, counted from the right

// torch.matmul: the last two dims multiply, and the dims before them broadcast. A vector lacks its row or column.
Contraction matmul_of(const OpCall& op, ValueId a, ValueId b) {
  Contraction product{{a, b}, {{}, {}}, {}};
  const auto label = [&](ValueId value, int outer_label, bool is_left) {
    Labels labels;
    const auto rank = op.rank(value);
    for (std::int64_t i = 0; i + 2 < rank; ++i) labels.push_back(static_cast<int>(rank - 2 - i));
    if (rank >= 2) labels.push_back(is_left ? outer_label : kSummed);
    labels.push_back(is_left || rank < 2 ? kSummed : outer_label);
    return labels;
  };
  product.labels = {label(a, kRow, true), label(b, kColumn, false)};
  const auto broadcast_dims = std::max({op.rank(a), op.rank(b), std::int64_t{2}}) - 2;
  for (std::int64_t i = broadcast_dims; i > 0; --i) product.result.push_back(static_cast<int>(i));
  if (op.rank(a) >= 2) product.result.push_back(kRow);
  if (op.rank(b) >= 2) product.result.push_back(kColumn);
  return product;
}

Labels labels_of_term(const std::string& term, std::int64_t rank) {
  const auto ellipsis = term.find("...");
  const auto named =
      static_cast<std::int64_t>(std::count_if(term.begin(), term.end(), [](char c) { return c != '.'; }));
  Labels labels;
  for (std::size_t i = 0; i < term.size();) {
    if (i == ellipsis) {
      for (std::int64_t k = rank - named; k > 0; --k) labels.push_back(static_cast<int>(k));
      i += 3;
    } else {
      labels.push_back(1000 + term[i]);
      ++i;
    }
  }
  return labels;
}

std::optional<Contraction> einsum_of(const OpCall& op) {
  const auto at = op.position("equation");
  if (at < 0 || !op.node().args[static_cast<std::size_t>(at)].isString()) return std::nullopt;
  std::string equation = op.node().args[static_cast<std::size_t>(at)].toStringRef();
  std::erase_if(equation, [](unsigned char c) { return std::isspace(c) != 0; });
  const auto arrow = equation.find("->");
  Contraction product;
  product.operands = op.tensors();
  std::string left = equation.substr(0, arrow);
  std::map<int, int> uses;
  for (std::size_t begin = 0; begin <= left.size();) {
    const auto end = std::min(left.find(',', begin), left.size());
    if (product.labels.size() >= product.operands.size()) return std::nullopt;
    const auto rank = op.rank(product.operands[product.labels.size()]);
    product.labels.push_back(labels_of_term(left.substr(begin, end - begin), rank));
    for (const int label : product.labels.back()) ++uses[label];
    begin = end + 1;
  }
  if (product.labels.size() != product.operands.size()) return std::nullopt;
  const auto rank = static_cast<std::int64_t>(op.result_sizes().size());
  if (arrow != std::string::npos) {
    product.result = labels_of_term(equation.substr(arrow + 2), rank);
  } else {  // broadcast dims, then the labels used once, in alphabetic order
    std::vector<int> dots, once;
    for (const auto& [label, count] : uses) {
      if (label < 1000)
        dots.push_back(label);
      else if (count == 1)
        once.push_back(label);
    }
    product.result.assign(dots.rbegin(), dots.rend());
    product.result.insert(product.result.end(), once.begin(), once.end());
  }
  return product;
}

BatchTyping type_contraction(const OpCall& op, const Contraction& product) {
  std::optional<int> label;
  BatchType layout;
  for (std::size_t k = 0; k < product.operands.size(); ++k) {
    const auto& type = op.type(product.operands[k]);
    if (!type.has_samples()) continue;
    const int here = product.labels[k].at(static_cast<std::size_t>(type.dim));
    if (std::count(product.labels[k].begin(), product.labels[k].end(), here) > 1) {
      return BatchTyping::mixes("it takes a diagonal over the batch");
    }
    if (label && (*label != here || !layout.same_layout(type))) {
      return BatchTyping::mixes("it multiplies samples with other samples");
    }
    label = here;
    layout = type;
  }
  if (!label) return BatchTyping::mixes("its result grows with the batch, its operands do not");
  const auto found = std::find(product.result.begin(), product.result.end(), *label);
  if (found != product.result.end()) return typed(op, layout.at_dim(found - product.result.begin()));
  for (std::size_t k = 0; k < product.operands.size();
       ++k) {  // summed over samples: in all operands that have the label
    const auto& labels = product.labels[k];
    const bool summed = std::find(labels.begin(), labels.end(), *label) != labels.end();
    if (summed && !op.type(product.operands[k]).is_batched()) {
      return BatchTyping::mixes("it sums samples against a shared tensor");
    }
  }
  return typed(op, BatchType::partial_sum());
}

// beta * self + alpha * product: the type of self must fit the product's.
BatchTyping with_addend(const OpCall& op, BatchTyping product) {
  if (product.verdict != Verdict::kTyped) return product;
  const auto self = op.first_tensor();
  const auto& addend = op.type(self);
  const auto type = product.outputs.front();
  if (type.is(BatchKind::kPartialSum)) {
    if (addend.has_samples() || !op.is_floating(self))
      return BatchTyping::mixes("it adds samples to a sum over samples");
    product.handling.weighted_arguments = {0};
    return product;
  }
  if (!addend.has_samples()) return product;
  const auto shift = static_cast<std::int64_t>(op.result_sizes().size()) - op.rank(self);
  if (addend.dim + shift != type.dim || !addend.same_layout(type)) {
    return BatchTyping::mixes("it adds samples to other samples");
  }
  return product;
}

/// The product without its addend; nullopt if an equation is not understood.
std::optional<Contraction> contraction_of(const OpCall& op) {
  const auto operands = op.tensors();
  const auto name = op.base_name();
  if (name == "einsum") return einsum_of(op);
  if (name == "outer" || name == "ger") return Contraction{operands, {{kRow}, {kColumn}}, {kRow, kColumn}};
  if (name == "inner") {
    Contraction product{operands, {{}, {}}, {}};
    for (std::size_t k = 0; k < 2; ++k) {
      for (std::int64_t i = 0; i + 1 < op.rank(operands[k]); ++i) {
        product.labels[k].push_back(static_cast<int>(100 * (static_cast<std::int64_t>(k) + 1) + i));
        product.result.push_back(product.labels[k].back());
      }
      if (op.rank(operands[k]) > 0) product.labels[k].push_back(kSummed);
    }
    return product;
  }
  if (name == "addbmm") {  // sums over the first dim of both
    return Contraction{{operands[1], operands[2]}, {{1, kRow, kSummed}, {1, kSummed, kColumn}}, {kRow, kColumn}};
  }
  if (has_addend(op)) return matmul_of(op, operands[1], operands[2]);
  return matmul_of(op, operands[0], operands[1]);
}

BatchTyping product(const OpCall& op) {
  const auto contraction = contraction_of(op);
  if (!contraction) return BatchTyping::mixes("its equation is not understood");
  const auto result = type_contraction(op, *contraction);
  return has_addend(op) ? with_addend(op, result) : result;
}

BatchTyping product_of_sum(const OpCall& op) {
  return linear_in_sum(op, !has_addend(op) && sum_operands(op).sums.size() == 1);
}

/// Distances of rows from rows, typed like a product with the transpose.
BatchTyping distances(const OpCall& op) {
  const auto operands = op.tensors();
  auto product = matmul_of(op, operands[0], operands[1]);
  for (std::size_t k = 0; k < 2; ++k) {
    product.labels[k].back() = kSummed;
    product.labels[k].at(product.labels[k].size() - 2) = k == 0 ? kRow : kColumn;
    const auto& type = op.type(operands[k]);
    if (type.has_samples() && type.dim == op.rank(operands[k]) - 1)
      return BatchTyping::mixes("it measures along the batch");
  }
  return type_contraction(op, product);
}

/// Operands that are multiplied: all but the addend of addmm and its relatives.
std::vector<ValueId> factors_of(const OpCall& op) {
  auto operands = op.tensors();
  if (operands.size() == 3 && op.base_name() != "einsum") operands.erase(operands.begin());
  return operands;
}

/// Distinct dims of an einsum, as one product of sizes, times two.
std::optional<Affine> einsum_volume(const OpCall& op) {
  const auto product = einsum_of(op);
  if (!product) return std::nullopt;
  std::map<int, SizeExpr> size_of_label;
  for (std::size_t k = 0; k < product->operands.size(); ++k) {
    const auto& sizes = op.sizes(product->operands[k]);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      auto& known = size_of_label[product->labels[k][i]];
      if (known == SizeExpr{} || known == SizeExpr{0, 1}) known = sizes[i];
    }
  }
  Sizes volume;
  for (const auto& [label, size] : size_of_label) volume.push_back(size);
  return elements(volume) * 2;
}

std::optional<Affine> flops_of_product(const OpCall& op) {
  const auto operands = op.tensors();
  const auto name = op.base_name();
  if (name == "einsum") return einsum_volume(op);
  if (name == "outer" || name == "ger") return elements(op.result_sizes()) * 2;
  const std::size_t left = has_addend(op) ? 1 : 0;
  const auto& sizes = op.sizes(operands[left]);
  const auto inner = sizes.empty() ? SizeExpr{0, 1} : sizes.back();
  const auto sum_of_batch = name == "addbmm" ? op.sizes(operands[left]).front() : SizeExpr{0, 1};
  const auto flops_at = [&](std::int64_t batch) {
    return 2 * elements_at(op.result_sizes(), batch) * static_cast<double>(inner.at(batch) * sum_of_batch.at(batch));
  };
  return line_through(flops_at(1), flops_at(2));
}

SavedBytes saved_by_contraction(const OpCall& op) { return {factors_to_keep(op, factors_of(op)), {}}; }

std::optional<Affine> flops_of_distances(const OpCall& op) {
  return elements(op.result_sizes()) * static_cast<double>(2 * last_size(op.sizes(op.first_tensor())));
}

/// A product whose addend is used unscaled.
ShardedOp sum_with(ShardCall& call, ValueId addend) {
  const auto& op = call.op();
  const bool as_it_is = op.number("alpha", 1) == 1 && op.number("beta", 1) == 1 && op.node().integers.empty();
  if (call.is_sharded(addend) || call.needs(addend) || !as_it_is) return ShardedOp::whole();
  return call.sum(ShardedOp::Kernel::kBiasOnce);
}

ShardedOp shard_product(ShardCall& call) {
  const auto& op = call.op();
  const bool adds = has_addend(op);
  const auto product = contraction_of(op);
  const bool adds_otherwise = adds && (op.base_name() != "addmm" || op.written_argument() >= 0);
  if (!product || adds_otherwise) return ShardedOp::whole();
  const auto addend = adds ? op.first_tensor() : ValueId::none();
  std::optional<int> label;
  UnitSlices units;
  for (std::size_t k = 0; k < product->operands.size(); ++k) {
    if (!call.is_sharded(product->operands[k])) continue;
    units = call.slices(product->operands[k]);
    label = product->labels[k].at(static_cast<std::size_t>(units.dim));
  }
  if (!label) return ShardedOp::whole();
  for (std::size_t k = 0; k < product->operands.size(); ++k) {
    const auto& labels = product->labels[k];
    const auto at = std::ranges::find(labels, *label);
    const auto operand = product->operands[k];
    if (std::ranges::count(labels, *label) > 1) return ShardedOp::whole();
    if (call.is_sharded(operand) && at == labels.end()) return ShardedOp::whole();
    if (at != labels.end() && !call.require(operand, at - labels.begin(), units)) return ShardedOp::whole();
  }
  const auto found = std::ranges::find(product->result, *label);
  if (found == product->result.end()) return adds ? sum_with(call, addend) : call.sum();
  const auto dim = found - product->result.begin();
  const auto to = static_cast<std::int64_t>(product->result.size());
  const bool fits = !adds || call.require(addend, dim - (to - op.rank(addend)), units);
  return fits ? call.of_one(units.at_dim(dim)) : ShardedOp::whole();
}

}  // namespace

void add_products(OpList& list) {
  OpDef def;
  def.op_class = OpClass::kMatmul;
  def.traits = OpTrait::kReadsWeights;
  def.saved = SavedTensors::kInputs;
  def.over_samples = product;
  def.over_sums = product_of_sum;
  def.flops = flops_of_product;
  def.backward_products = [](const OpCall& op) { return products_needed(op, factors_of(op)); };
  def.saved_by = saved_by_contraction;
  def.sharding = shard_product;
  def.treatment = kSums;
  def.summary =
      "products: per sample where the dim of samples stays, a sum where it is summed over, mixes where "
      "samples multiply samples";
  list.add(def, {"linalg_matmul", "dot", "vdot", "inner", "outer", "ger", "einsum"});
  auto typed_alike = def;
  typed_alike.traits = def.traits | OpTrait::kSharesElementType;
  list.add(typed_alike, {"bmm", "mv", "addmv", "addbmm", "baddbmm"});
  auto layer = typed_alike;
  layer.layer = LayerForm{.weight = 1, .outputs = 1};
  list.add(layer, {"matmul", "mm"});
  layer.layer = LayerForm{.weight = 2, .outputs = 1, .bias = 0};
  list.add(layer, {"addmm"});

  OpDef distance;
  distance.traits = OpTrait::kReadsWeights;
  distance.over_samples = distances;
  distance.flops = flops_of_distances;
  distance.backward_products = [](const OpCall&) { return 2.5; };
  distance.saved = SavedTensors::kInputAndResult;
  distance.treatment = kPerSample;
  distance.summary = "rows of a sample with rows of the same sample; mixes else";
  list.add(distance, {"cdist"});
}

}  // namespace autopar::ops
