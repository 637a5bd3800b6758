#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymInt.h>

#include "capture/replay/replay.hpp"

namespace autopar::replay {

/// Signatures that are called without boxing. A boxed call costs 0.1-0.3 µs more, which matters for tiny operators. T
/// tensor, S Scalar, I int, L SymInt[], O Tensor?.
enum class StepKind : std::uint8_t { kBoxed, kT, kTT, kTTS, kTS, kTSS, kTTTSS, kTTO, kTL, kTII };

/// Non-tensor arguments in the form that the kind of call takes.
struct Arguments {
  std::vector<c10::IValue> boxed;  ///< one per schema argument, None for tensors
  std::vector<c10::Scalar> scalars;
  std::vector<std::int64_t> integers;
  std::vector<c10::SymInt> sizes;
};

struct ReplayStep {
  const OpNode* node;
  OpId id;
  StepKind kind = StepKind::kBoxed;
  std::vector<ValueId> operands{};  ///< unboxed kinds: the tensor arguments
  ValueId result{};                 ///< unboxed kinds
  Arguments arguments{};
  std::size_t resolved = 0;     ///< index in Resolved, for nodes with integers
  std::vector<ValueId> dead{};  ///< dropped after the step
  OpHandler handler{};
};

[[nodiscard]] ReplayStep make_step(const OpNode& node, OpId id, std::vector<c10::IValue> args);
[[nodiscard]] Arguments make_arguments(StepKind kind, std::vector<c10::IValue> args);
void call_unboxed(const ReplayStep& step, const Arguments& arguments, Environment& environment);

}  // namespace autopar::replay
