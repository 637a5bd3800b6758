#include <autopar/capture/op_call.hpp>

#include <autopar/capture/op_def.hpp>

#include "capture/ir/batch_number.hpp"
#include "ops/registry.hpp"

namespace autopar {

OpCall::OpCall(const OpGraph& graph, const std::vector<BatchType>& types, const AlgebraOptions& options, OpId id)
    : graph_(graph),
      types_(types),
      options_(options),
      id_(id),
      node_(graph.op(id)),
      def_(ops::definition_of(graph.op(id).op)) {
  base_name_ = def_.name.empty() ? std::string_view(graph.name(id)) : std::string_view(def_.name);
  if (constexpr std::string_view kAten = "aten::"; base_name_.starts_with(kAten))
    base_name_.remove_prefix(kAten.size());
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

std::int32_t OpCall::position(std::string_view name) const {
  const auto& arguments = node_.op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return static_cast<std::int32_t>(i);
  }
  return -1;
}

std::vector<ValueId> OpCall::tensors(std::int32_t wanted) const {
  std::vector<ValueId> found;
  for (const auto& slot : node_.inputs) {
    if (slot.position != wanted) continue;
    for (const auto value : slot.values) {
      if (value.valid()) found.push_back(value);
    }
  }
  return found;
}

std::vector<ValueId> OpCall::tensors() const {
  std::vector<ValueId> found;
  for_each_input(node_, [&](ValueId value) { found.push_back(value); });
  return found;
}

ValueId OpCall::tensor(std::string_view name) const {
  const auto found = tensors(position(name));
  return found.empty() ? ValueId::none() : found.front();
}

ValueId OpCall::first_tensor() const {
  const auto found = tensors();
  return found.empty() ? ValueId::none() : found.front();
}

bool OpCall::is_floating(ValueId value) const {
  const auto dtype = graph_.value(value).dtype;
  return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
}

bool OpCall::is_none(std::string_view name) const {
  const auto at = position(name);
  return at < 0 || (node_.args[static_cast<std::size_t>(at)].isNone() && tensors(at).empty());
}

std::int64_t OpCall::integer(std::string_view name, std::int64_t absent) const {
  const auto at = position(name);
  if (at < 0) return absent;
  const auto& value = node_.args[static_cast<std::size_t>(at)];
  return value.isInt() ? value.toInt() : absent;
}

bool OpCall::flag(std::string_view name, bool absent) const {
  const auto at = position(name);
  if (at < 0) return absent;
  const auto& value = node_.args[static_cast<std::size_t>(at)];
  return value.isBool() ? value.toBool() : absent;
}

double OpCall::number(std::string_view name, double absent) const {
  const auto at = position(name);
  if (at < 0) return absent;
  const auto& value = node_.args[static_cast<std::size_t>(at)];
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  return absent;
}

std::optional<std::vector<std::int64_t>> OpCall::integers(std::string_view name) const {
  const auto at = position(name);
  if (at < 0) return std::nullopt;
  const auto& value = node_.args[static_cast<std::size_t>(at)];
  if (value.isIntList()) return value.toIntVector();
  if (value.isInt()) return std::vector<std::int64_t>{value.toInt()};
  return std::nullopt;
}

std::optional<SizeExpr> OpCall::expression(std::string_view name, std::int32_t element) const {
  const auto at = position(name);
  if (at < 0) return std::nullopt;
  std::optional<ir::BatchFactors> known;
  ir::for_each_number(node_, [&](ir::BatchFactors factors) {
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

bool OpCall::has_batch_sizes() const {
  for (const auto& integer : node_.integers) {
    if (integer.role == IntegerRole::kSize) return true;
  }
  return false;
}

}  // namespace autopar
