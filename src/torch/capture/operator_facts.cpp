#include <string_view>

#include "torch/capture/tracer.hpp"

namespace autopar::detail {
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

bool is_false(const c10::IValue* flag) { return flag != nullptr && flag->isBool() && !flag->toBool(); }

}  // namespace

bool draws_random(const c10::OperatorHandle& op, const std::vector<c10::IValue>& args) {
  const auto& schema = op.schema();
  const bool takes_generator = argument_named(schema, args, "generator") != nullptr;
  if (!takes_generator && !op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  if (is_false(argument_named(schema, args, "train")) || is_false(argument_named(schema, args, "training"))) return false;
  if (takes_generator) return true;
  return !is_zero(argument_named(schema, args, "p")) && !is_zero(argument_named(schema, args, "dropout")) &&
         !is_zero(argument_named(schema, args, "dropout_p"));
}

std::vector<std::int32_t> unannotated_writes(const c10::OperatorHandle& op, const std::vector<c10::IValue>& args) {
  static constexpr std::string_view kNormalisations[] = {"aten::batch_norm",       "aten::native_batch_norm",
                                                         "aten::cudnn_batch_norm", "aten::miopen_batch_norm",
                                                         "aten::instance_norm",    "aten::_batch_norm_impl_index"};
  const auto& schema = op.schema();
  bool is_normalisation = false;
  for (const auto name : kNormalisations) is_normalisation |= schema.name() == name;
  if (!is_normalisation) return {};
  for (const auto* flag : {"training", "use_input_stats"}) {
    if (is_false(argument_named(schema, args, flag))) return {};
  }
  std::vector<std::int32_t> positions;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto& name = schema.arguments()[i].name();
    if (name == "running_mean" || name == "running_var") positions.push_back(static_cast<std::int32_t>(i));
  }
  return positions;
}

}  // namespace autopar::detail
