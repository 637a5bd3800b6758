#include "capture/replay/replay_step.hpp"

#include <string>
#include <utility>

namespace autopar::replay {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

char letter(const c10::Argument& argument) {
  const auto& type = argument.real_type();  // tells SymInt from int
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return argument.alias_info() != nullptr && argument.alias_info()->isWrite() ? '!' : 'T';
    case c10::TypeKind::NumberType:
      return 'S';
    case c10::TypeKind::IntType:
      return 'I';
    case c10::TypeKind::ListType:
      return type->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::SymIntType ? 'L' : '?';
    case c10::TypeKind::OptionalType:
      return type->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::TensorType ? 'O' : '?';
    default:
      return '?';
  }
}

StepKind kind_of(const OpNode& node) {
  const auto& schema = node.op.schema();
  if (schema.returns().size() != 1 || schema.returns()[0].type()->kind() != c10::TypeKind::TensorType)
    return StepKind::kBoxed;
  std::string signature;
  for (const auto& argument : schema.arguments()) signature += letter(argument);
  static constexpr std::pair<const char*, StepKind> kKinds[] = {
      {"T", StepKind::kT},     {"TT", StepKind::kTT},   {"TTS", StepKind::kTTS},
      {"TS", StepKind::kTS},   {"TSS", StepKind::kTSS}, {"TTTSS", StepKind::kTTTSS},
      {"TTO", StepKind::kTTO}, {"TL", StepKind::kTL},   {"TII", StepKind::kTII}};
  for (const auto& [text, kind] : kKinds) {
    if (signature != text) continue;
    // Only what libtorch itself registers with exactly this C++ signature.
    return schema.name().rfind("aten::", 0) == 0 ? kind : StepKind::kBoxed;
  }
  return StepKind::kBoxed;
}

}  // namespace

ReplayStep make_step(const OpNode& node, OpId id, std::vector<c10::IValue> args) {
  ReplayStep step{&node, id};
  step.kind = kind_of(node);
  std::size_t tensors = 0;
  for (const auto& slot : node.inputs) {
    if (slot.kind != SlotKind::kTensor || (!slot.values.front().valid()))
      step.kind = StepKind::kBoxed;
    else
      step.operands.push_back(slot.values.front());
    ++tensors;
  }
  // An absent optional tensor has no slot; any other argument without a slot is no tensor.
  if (step.kind == StepKind::kTTO && tensors == 2) step.operands.push_back(ValueId::none());
  // A list of results may be empty: the pieces along a dim without elements.
  if (node.outputs.size() != 1 || node.outputs[0].values.empty() || !node.outputs[0].values.front().valid())
    step.kind = StepKind::kBoxed;
  else
    step.result = node.outputs[0].values.front();
  step.arguments = make_arguments(step.kind, std::move(args));
  return step;
}

Arguments make_arguments(StepKind kind, std::vector<c10::IValue> args) {
  Arguments made;
  switch (kind) {
    case StepKind::kTTS:
    case StepKind::kTS:
    case StepKind::kTSS:
    case StepKind::kTTTSS:
      for (const auto& argument : args) {
        if (argument.isScalar()) made.scalars.push_back(argument.toScalar());
      }
      break;
    case StepKind::kTL:
      for (const auto size : args[1].toIntVector()) made.sizes.emplace_back(size);
      break;
    case StepKind::kTII:
      made.integers = {args[1].toInt(), args[2].toInt()};
      break;
    default:
      break;
  }
  made.boxed = std::move(args);
  return made;
}

void call_unboxed(const ReplayStep& step, const Arguments& a, Environment& environment) {
  const auto& op = step.node->op;
  const auto in = [&](std::size_t i) -> const Tensor& { return environment[step.operands[i].index()]; };
  const auto call = [&](auto typed, const auto&... arguments) {
    environment[step.result.index()] = typed.call(arguments...);
  };
  switch (step.kind) {
    case StepKind::kT:
      return call(op.typed<Tensor(const Tensor&)>(), in(0));
    case StepKind::kTT:
      return call(op.typed<Tensor(const Tensor&, const Tensor&)>(), in(0), in(1));
    case StepKind::kTTS:
      return call(op.typed<Tensor(const Tensor&, const Tensor&, const at::Scalar&)>(), in(0), in(1), a.scalars[0]);
    case StepKind::kTS:
      return call(op.typed<Tensor(const Tensor&, const at::Scalar&)>(), in(0), a.scalars[0]);
    case StepKind::kTSS:
      return call(op.typed<Tensor(const Tensor&, const at::Scalar&, const at::Scalar&)>(), in(0), a.scalars[0],
                  a.scalars[1]);
    case StepKind::kTTTSS:
      return call(op.typed<Tensor(const Tensor&, const Tensor&, const Tensor&, const at::Scalar&, const at::Scalar&)>(),
                  in(0), in(1), in(2), a.scalars[0], a.scalars[1]);
    case StepKind::kTTO: {
      const OptionalTensor third = step.operands[2].valid() ? OptionalTensor(in(2)) : std::nullopt;
      return call(op.typed<Tensor(const Tensor&, const Tensor&, const OptionalTensor&)>(), in(0), in(1), third);
    }
    case StepKind::kTL:
      return call(op.typed<Tensor(const Tensor&, c10::SymIntArrayRef)>(), in(0), c10::SymIntArrayRef(a.sizes));
    case StepKind::kTII:
      return call(op.typed<Tensor(const Tensor&, std::int64_t, std::int64_t)>(), in(0), a.integers[0], a.integers[1]);
    case StepKind::kBoxed:
      break;
  }
}

}  // namespace autopar::replay
