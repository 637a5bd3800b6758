#pragma once

#include <cstddef>
#include <cstdint>

#include "capture/replay/replay.hpp"

namespace autopar::interpret {

/// An argument of a call.
[[nodiscard]] inline c10::IValue& argument(replay::ReplayCall& call, std::int32_t position) {
  return call.stack[static_cast<std::size_t>(position)];
}

/// The position of an argument; -1: the operator has no such argument.
[[nodiscard]] inline std::int32_t argument_named(const OpNode& node, const char* name) {
  const auto position = node.op.schema().argumentIndexWithName(name);
  return position ? static_cast<std::int32_t>(*position) : -1;
}

}  // namespace autopar::interpret
