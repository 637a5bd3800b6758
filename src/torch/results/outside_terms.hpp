#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <torch/csrc/autograd/function.h>

#include "torch/parameters/state_registry.hpp"

namespace autopar::results {

/// What a backward of the user's makes of a model's parameters outside of the model: the part of autograd's graph
/// between the backward's roots and leaves, without what leads to these through results of models.
///
/// A term of parameters and constants (weight decay, a distance to earlier values) has the same gradient on every rank.
/// A forward of the unwrapped module has one of this rank's samples. Neither says so itself: what tells is an operator
/// that takes a tensor without history where layers take activations, or that has more rows than its parameter.
class OutsideTerms {
 public:
  struct OnData {
    std::string op;            ///< as autograd names it: "AddmmBackward0"
    parameters::StateId leaf;  ///< one that it leads to
  };

  /// Of the backward that runs. O(nodes).
  /// @param nodes  of it; autograd leaves out a single root
  /// @param leaves  numbers of leaves, by their address
  OutsideTerms(const std::unordered_set<torch::autograd::Node*>& nodes,
               const std::unordered_map<const void*, parameters::StateId>& leaves);

  /// The first operator of the forward that takes data beside a leaf.
  [[nodiscard]] const std::optional<OnData>& on_data() const { return on_data_; }
  /// Whether a leaf may have a gradient that does not come from a model's result.
  [[nodiscard]] bool reach(parameters::StateId leaf) const { return !from_results_only_.contains(leaf); }

 private:
  std::optional<OnData> on_data_;
  std::unordered_set<parameters::StateId> from_results_only_;
};

}  // namespace autopar::results
