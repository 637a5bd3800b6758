#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include <autopar/core/ids.hpp>
#include <autopar/plan/check/stated_plan.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// Bytes that recomputed segments of a stage gather under ZeRO 3.
struct CheckedRegathered {
  std::int64_t held = 0;       ///< at a time, until their gradients are made
  std::int64_t once_more = 0;  ///< resharded after the second forward, and gathered again
};

/// Parameters that atoms outside a segment read as well stay unsharded, and all do if backwards are split. Of the rest
/// a segment keeps up to 256 MiB.
[[nodiscard]] inline CheckedRegathered checked_regathered(const StatedPlan& stated, int stage) {
  const StagePlan& plan = stated.plan().stages[static_cast<std::size_t>(stage)];
  const ModelProfile& model = stated.model();
  const auto readers = [&](const std::vector<NodeId>& atoms) {
    std::map<ParameterId, std::set<NodeId>> out;
    for (const NodeId atom : atoms) {
      for (const ParameterId id : model.graph[atom].parameters) {
        const ParameterProfile& parameter = model.parameters[id.index()];
        if (parameter.trainable && parameter.highest_zero >= 3) out[id].insert(atom);
      }
    }
    return out;
  };
  const auto in_stage = readers(plan.atoms);
  std::map<ParameterId, std::int64_t> always;
  std::int64_t most = 0, once_more = 0;
  for (const auto& segment : plan.recomputed) {
    std::int64_t alone = 0;
    for (const auto& [id, atoms] : readers(segment)) {
      const ParameterProfile& parameter = model.parameters[id.index()];
      const std::int64_t bytes = (parameter.copy > Bytes(0) ? parameter.copy : parameter.bytes).value();
      if (!keeps_backwards_whole(stated.plan().schedule) || atoms != in_stage.at(id))
        always[id] = bytes;
      else
        alone += bytes;
    }
    const std::int64_t kept = std::min(alone, std::int64_t{256} << 20);
    most = std::max(most, kept);
    once_more += alone - kept;
  }
  for (const auto& [id, bytes] : always) most += bytes;
  return {most, once_more};
}

}  // namespace autopar::detail
