#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <torch/csrc/autograd/function.h>

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
    std::string op;    ///< as autograd names it: "AddmmBackward0"
    std::size_t leaf;  ///< one that it leads to
  };

  /// Of the backward that runs. O(nodes).
  /// @param nodes  of it; autograd leaves out a single root
  /// @param leaves  numbers of leaves, by their address
  OutsideTerms(const std::unordered_set<torch::autograd::Node*>& nodes,
               const std::unordered_map<const void*, std::size_t>& leaves);

  /// The first operator of the forward that takes data beside a leaf.
  [[nodiscard]] const std::optional<OnData>& on_data() const { return on_data_; }
  /// Whether a leaf may have a gradient that does not come from a model's result.
  [[nodiscard]] bool reach(std::size_t leaf) const { return !from_results_only_.contains(leaf); }

 private:
  std::optional<OnData> on_data_;
  std::unordered_set<std::size_t> from_results_only_;
};

}  // namespace autopar::results
