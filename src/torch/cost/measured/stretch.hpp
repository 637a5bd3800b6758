#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>

#include "torch/cost/profile.hpp"

namespace autopar::cost::detail {

/// Neighbouring atoms of a model that one rank can run together, and their operators.
struct Stretch {
  std::vector<NodeId> atoms;
  std::vector<OpId> ops;  ///< ascending
};

/// The stretch that speaks for the largest part of the model's time: an atom speaks for all of its structure. So it has
/// of each repeated layer one at least, where memory allows it.
/// @param most  bytes of parameters, their gradients, saved values and the largest workspace together
/// @param time  of an atom; none: the stretch must not contain it
/// @cost O(atoms x atoms of the longest stretch)
[[nodiscard]] Stretch typical_stretch(const GraphProfile& profile, double samples, Bytes most,
                                      const std::function<std::optional<Seconds>(NodeId)>& time);

}  // namespace autopar::cost::detail
