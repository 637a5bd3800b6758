#include <algorithm>
#include <iterator>
#include <string_view>

#include "capture/trace/tracer.hpp"

namespace autopar::trace {
namespace {

const c10::IValue* argument_named(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& args,
                                  std::string_view name) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (schema.arguments()[i].name() == name) return &args[i];
  }
  return nullptr;
}

bool is_zero(const c10::IValue* probability) {
  return probability != nullptr && probability->isDouble() && probability->toDouble() == 0.0;
}

/// Known by name: older operators lack the tags.
bool has_data_dependent_form(const c10::OperatorHandle& op) {
  static constexpr std::string_view kNames[] = {"aten::nonzero",
                                                "aten::masked_select",
                                                "aten::_unique2",
                                                "aten::_unique",
                                                "aten::unique_dim",
                                                "aten::unique_consecutive",
                                                "aten::unique_dim_consecutive",
                                                "aten::bincount",
                                                "aten::_local_scalar_dense",
                                                "aten::item",
                                                "aten::is_nonzero",
                                                "aten::_pack_padded_sequence",
                                                "aten::_pad_packed_sequence"};
  return op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape) ||
         std::find(std::begin(kNames), std::end(kNames), op.schema().name()) != std::end(kNames);
}

bool has_boolean_index(const torch::jit::Stack& stack, std::size_t base) {
  const auto& indices = stack[base + 1];
  if (!indices.isList()) return false;
  for (const c10::IValue& index : indices.toListRef()) {
    if (!index.isTensor() || !index.toTensor().defined()) continue;
    const auto dtype = index.toTensor().scalar_type();
    if (dtype == at::kBool || dtype == at::kByte) return true;
  }
  return false;
}

bool is_false(const c10::IValue* flag) { return flag != nullptr && flag->isBool() && !flag->toBool(); }

}  // namespace

bool reads_data(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!has_data_dependent_form(op)) return false;
  const auto& name = op.schema().name();
  if (name == "aten::index") return has_boolean_index(stack, stack.size() - 2);
  if (name == "aten::linalg_lstsq") {  // of drivers, only the CPU's own has results of known sizes
    const auto& driver = stack.back();
    return !driver.isNone() && driver.toStringRef() != "gelsy";
  }
  if (name == "aten::one_hot") return stack.back().toInt() < 0;  // the number of classes, taken from the data
  return true;
}

bool draws_random(const c10::OperatorHandle& op, const std::vector<c10::IValue>& args) {
  const auto& schema = op.schema();
  const bool takes_generator = argument_named(schema, args, "generator") != nullptr;
  if (!takes_generator && !op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  if (is_false(argument_named(schema, args, "train")) || is_false(argument_named(schema, args, "training")))
    return false;
  if (takes_generator) return true;
  return !is_zero(argument_named(schema, args, "p")) && !is_zero(argument_named(schema, args, "dropout")) &&
         !is_zero(argument_named(schema, args, "dropout_p"));
}

/// Norms that update running statistics in training without saying so in their schema.
std::vector<std::int32_t> unannotated_writes(const c10::OperatorHandle& op, const std::vector<c10::IValue>& args) {
  const auto& schema = op.schema();
  const auto *training = argument_named(schema, args, "training"),
             *uses_input = argument_named(schema, args, "use_input_stats");
  if ((training == nullptr && uses_input == nullptr) || is_false(training) || is_false(uses_input)) return {};
  std::vector<std::int32_t> positions;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto& name = schema.arguments()[i].name();
    if (schema.arguments()[i].alias_info() != nullptr) continue;
    if (name == "running_mean" || name == "running_var") positions.push_back(static_cast<std::int32_t>(i));
  }
  return positions;
}

}  // namespace autopar::trace
