#include <algorithm>
#include <cctype>
#include <map>

#include "capture/algebra/op_context.hpp"

namespace autopar::algebra {
namespace {

constexpr int kRow = -1, kColumn = -2, kSummed = -3;  // other labels: broadcast dims, counted from the right

// torch.matmul: the last two dims multiply, those before broadcast; a vector lacks its row or column.
Contraction matmul_of(const OpContext& op, ValueId a, ValueId b) {
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

std::optional<Contraction> einsum_of(const OpContext& op) {
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

RuleResult type_contraction(const OpContext& op, const Contraction& product) {
  std::optional<int> label;
  BatchType layout;
  for (std::size_t k = 0; k < product.operands.size(); ++k) {
    const auto& type = op.type(product.operands[k]);
    if (!type.has_samples()) continue;
    const int here = product.labels[k].at(static_cast<std::size_t>(type.dim));
    if (std::count(product.labels[k].begin(), product.labels[k].end(), here) > 1) {
      return RuleResult::mixes("it takes a diagonal over the batch");
    }
    if (label && (*label != here || !layout.same_layout(type))) {
      return RuleResult::mixes("it multiplies samples with other samples");
    }
    label = here;
    layout = type;
  }
  if (!label) return RuleResult::mixes("its result grows with the batch, its operands do not");
  const auto found = std::find(product.result.begin(), product.result.end(), *label);
  if (found != product.result.end()) return typed(op, layout.at_dim(found - product.result.begin()));
  for (std::size_t k = 0; k < product.operands.size();
       ++k) {  // summed over samples: in all operands that have the label
    const auto& labels = product.labels[k];
    const bool summed = std::find(labels.begin(), labels.end(), *label) != labels.end();
    if (summed && !op.type(product.operands[k]).is_batched()) {
      return RuleResult::mixes("it sums samples against a shared tensor");
    }
  }
  return typed(op, BatchType::partial_sum());
}

// beta * self + alpha * product: self follows the product's type.
RuleResult with_addend(const OpContext& op, RuleResult product) {
  if (product.verdict != Verdict::kTyped) return product;
  const auto self = op.first_tensor();
  const auto& addend = op.type(self);
  const auto type = product.outputs.front();
  if (type.is(BatchKind::kPartialSum)) {
    if (addend.has_samples() || !op.is_floating(self))
      return RuleResult::mixes("it adds samples to a sum over samples");
    product.handling.weighted_arguments = {0};
    return product;
  }
  if (!addend.has_samples()) return product;
  const auto shift = static_cast<std::int64_t>(op.result_sizes().size()) - op.rank(self);
  if (addend.dim + shift != type.dim || !addend.same_layout(type)) {
    return RuleResult::mixes("it adds samples to other samples");
  }
  return product;
}

RuleResult type_linear(const OpContext& op) {
  const auto operands = op.tensors();
  const std::size_t data = op.base_name() == "bilinear" ? 2 : 1;
  for (std::size_t i = data; i < operands.size(); ++i) {
    if (op.type(operands[i]).has_samples()) return RuleResult::mixes("its weight has samples");
  }
  const auto rank = static_cast<std::int64_t>(op.result_sizes().size());
  const auto shared = broadcast(op, {operands.begin(), operands.begin() + static_cast<std::ptrdiff_t>(data)}, rank);
  if (!shared || !shared->is_batched() || shared->dim == rank - 1) {
    return RuleResult::mixes("it multiplies along the batch");
  }
  return typed(op, *shared);
}

}  // namespace

bool has_addend(const OpContext& op) {
  const auto name = op.base_name();
  return name == "addmm" || name == "addmv" || name == "baddbmm" || name == "addbmm";
}

std::optional<Affine> einsum_volume(const OpContext& op) {
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

std::optional<Contraction> contraction_of(const OpContext& op) {
  const auto operands = op.tensors();
  const auto name = op.base_name();
  if (name == "einsum") return einsum_of(op);
  if (name == "outer" || name == "ger") return Contraction{operands, {{kRow}, {kColumn}}, {kRow, kColumn}};
  if (name == "inner") {
    Contraction product{operands, {{}, {}}, {}};
    for (std::size_t k = 0; k < 2; ++k) {
      for (std::int64_t i = 0; i + 1 < op.rank(operands[k]); ++i) {
        product.labels[k].push_back(static_cast<int>(100 * (static_cast<int>(k) + 1) + i));
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

RuleResult type_contraction_op(const OpContext& op) {
  if (op.traits().family == OpFamily::kLinear) return type_linear(op);
  const auto operands = op.tensors();
  if (op.base_name() == "cdist") {
    auto product = matmul_of(op, operands[0], operands[1]);
    for (std::size_t k = 0; k < 2; ++k) {
      product.labels[k].back() = kSummed;
      product.labels[k].at(product.labels[k].size() - 2) = k == 0 ? kRow : kColumn;
      const auto& type = op.type(operands[k]);
      if (type.has_samples() && type.dim == op.rank(operands[k]) - 1)
        return RuleResult::mixes("it measures along the batch");
    }
    return type_contraction(op, product);
  }
  const auto product = contraction_of(op);
  if (!product) return RuleResult::mixes("its equation is not understood");
  const auto typed_product = type_contraction(op, *product);
  return has_addend(op) ? with_addend(op, typed_product) : typed_product;
}

}  // namespace autopar::algebra
