#pragma once

#include <string>
#include <vector>

#include <autopar/schedule/action.hpp>
#include <autopar/schedule/concepts.hpp>

namespace autopar::testing {

/// "F00 F01 B00 W00 …": kind, stage (for the order of a rank), micro-batch; b is a whole backward.
inline std::string spelled(const std::vector<ComputeAction>& computes) {
  std::string out;
  for (const ComputeAction compute : computes) {
    const char* kind = compute.kind == ActionKind::kForward         ? "F"
                       : compute.kind == ActionKind::kBackward      ? "b"
                       : compute.kind == ActionKind::kBackwardInput ? "B"
                                                                    : "W";
    out += (out.empty() ? "" : " ") + std::string(kind);
    if (compute.stage.valid()) out += std::to_string(compute.stage.value());
    out += std::to_string(compute.microbatch);
  }
  return out;
}

}  // namespace autopar::testing
