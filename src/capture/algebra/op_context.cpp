#include "capture/algebra/op_context.hpp"

#include <algorithm>
#include <utility>

#include "capture/ir/batch_number.hpp"

namespace autopar::algebra {

OpContext::OpContext(const OpGraph& graph, const std::vector<BatchType>& types, const AlgebraOptions& options, OpId id)
    : graph_(graph),
      types_(types),
      options_(options),
      id_(id),
      node_(graph.op(id)),
      traits_(traits_of(graph.op(id).op)) {
  base_name_ = traits_.name.empty() ? std::string_view(graph.name(id)) : traits_.name;
  const auto& arguments = node_.op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      written_ = static_cast<std::int32_t>(i);
      break;
    }
  }
  for_each_output(node_, [&](ValueId value) { results_.push_back(value); });
}

std::int32_t OpContext::position(std::string_view name) const {
  const auto& arguments = node_.op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return static_cast<std::int32_t>(i);
  }
  return -1;
}

std::vector<ValueId> OpContext::tensors(std::int32_t wanted) const {
  std::vector<ValueId> found;
  for (const auto& slot : node_.inputs) {
    if (slot.position != wanted) continue;
    for (const auto value : slot.values) {
      if (value.valid()) found.push_back(value);
    }
  }
  return found;
}

std::vector<ValueId> OpContext::tensors() const {
  std::vector<ValueId> found;
  for_each_input(node_, [&](ValueId value) { found.push_back(value); });
  return found;
}

ValueId OpContext::tensor(std::string_view name) const {
  const auto found = tensors(position(name));
  return found.empty() ? ValueId::none() : found.front();
}

ValueId OpContext::first_tensor() const {
  const auto found = tensors();
  return found.empty() ? ValueId::none() : found.front();
}

bool OpContext::is_floating(ValueId value) const {
  const auto dtype = graph_.value(value).dtype;
  return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
}

bool OpContext::is_none(std::string_view name) const {
  const auto at = position(name);
  return at < 0 || (node_.args[static_cast<std::size_t>(at)].isNone() && tensors(at).empty());
}

std::int64_t OpContext::integer(std::string_view name, std::int64_t absent) const {
  const auto at = position(name);
  if (at < 0) return absent;
  const auto& value = node_.args[static_cast<std::size_t>(at)];
  return value.isInt() ? value.toInt() : absent;
}

bool OpContext::flag(std::string_view name, bool absent) const {
  const auto at = position(name);
  if (at < 0) return absent;
  const auto& value = node_.args[static_cast<std::size_t>(at)];
  return value.isBool() ? value.toBool() : absent;
}

double OpContext::number(std::string_view name, double absent) const {
  const auto at = position(name);
  if (at < 0) return absent;
  const auto& value = node_.args[static_cast<std::size_t>(at)];
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  return absent;
}

std::optional<std::vector<std::int64_t>> OpContext::integers(std::string_view name) const {
  const auto at = position(name);
  if (at < 0) return std::nullopt;
  const auto& value = node_.args[static_cast<std::size_t>(at)];
  if (value.isIntList()) return value.toIntVector();
  if (value.isInt()) return std::vector<std::int64_t>{value.toInt()};
  return std::nullopt;
}

std::optional<SizeExpr> OpContext::expression(std::string_view name, std::int32_t element) const {
  const auto at = position(name);
  if (at < 0) return std::nullopt;
  std::optional<BatchFactors> known;
  for_each_number(node_, [&](BatchFactors factors) {
    if (factors.back().argument == at && factors.back().element == element) known = factors;
  });
  if (known) {
    const auto& integer = known->back();
    return known->size() == 1 && integer.form == NumberForm::kInteger ? std::optional(integer.expr) : std::nullopt;
  }
  const auto values = integers(name);
  const auto k = static_cast<std::size_t>(element < 0 ? 0 : element);
  if (!values || k >= values->size()) return std::nullopt;
  return SizeExpr{0, (*values)[k]};
}

bool OpContext::has_batch_sizes() const {
  for (const auto& integer : node_.integers) {
    if (integer.role == IntegerRole::kSize) return true;
  }
  return false;
}

bool has_elements(const Sizes& sizes) {
  return std::ranges::none_of(sizes, [](const SizeExpr& size) { return size == SizeExpr{}; });
}

std::vector<std::int64_t> batch_dims(const Sizes& sizes) {
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].depends_on_batch()) dims.push_back(static_cast<std::int64_t>(i));
  }
  return dims;
}

BatchType type_by_sizes(const Sizes& sizes) {
  const auto dims = batch_dims(sizes);
  if (dims.empty()) return BatchType::replicated();
  const auto& size = sizes[static_cast<std::size_t>(dims.front())];
  if (dims.size() > 1 || size.fixed != 0 || size.per_sample < 1) return BatchType::of(BatchKind::kWhole);
  return BatchType::batched(dims.front(), 1, size.per_sample);
}

RuleResult typed(const OpContext& op, BatchType type) {
  RuleResult result;
  result.verdict = Verdict::kTyped;
  result.outputs.assign(op.results().size(), type);
  return result;
}

std::optional<BatchType> broadcast(const OpContext& op, const std::vector<ValueId>& operands, std::int64_t rank) {
  std::optional<BatchType> shared;
  for (const auto operand : operands) {
    const auto& type = op.type(operand);
    if (!type.has_samples()) continue;
    const auto here = type.at_dim(type.dim + rank - op.rank(operand));
    if (!shared) {
      shared = here;
    } else if (shared->dim != here.dim || !shared->same_layout(here)) {
      return std::nullopt;
    } else if (here.is_batched()) {
      shared = here;
    }
  }
  return shared ? shared : BatchType::replicated();
}

double elements_at(const Sizes& sizes, std::int64_t batch) {
  double product = 1;
  for (const auto size : sizes) product *= static_cast<double>(size.at(batch));
  return product;
}

Affine line_through(double at_one, double at_two) {
  const double slope = at_two - at_one;
  return {slope, std::max(0.0, at_one - slope)};
}

Affine elements(const Sizes& sizes) { return line_through(elements_at(sizes, 1), elements_at(sizes, 2)); }

}  // namespace autopar::algebra
