#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/csrc/autograd/function.h>

#include "torch/ranks/ranks.hpp"

namespace autopar::results {

class ResultNode;

/// The part of autograd's graph behind tensors of a rank's own, down to the results of models and global means and to
/// leaves. A common result (History) that it ends in has an addend of its gradient on each rank.
class OwnRegion {
 public:
  explicit OwnRegion(torch::autograd::edge_list roots);

  /// Where it ends, without the leaves that need no gradient; in an order that follows from the graph alone.
  [[nodiscard]] const torch::autograd::edge_list& ends() const { return ends_; }
  [[nodiscard]] std::size_t common_ends() const;
  /// Nodes of results that it ends in, each once.
  [[nodiscard]] const std::vector<ResultNode*>& nodes() const { return nodes_; }
  /// Elements of the first leaf that is a parameter of a model whose results the region ends in; 0 if there is none.
  [[nodiscard]] std::int64_t elements_of_model_parameter() const;

  /// Gradients at the ends that are wanted, where they have any; those of common ends summed over the ranks, so the
  /// same on each. Keeps the region's saved tensors. Collective if it ends in common results.
  /// @param of_roots  by root; none of them defined: this rank adds nothing
  /// @throws InvalidArgument on every rank if the common ends of two ranks differ
  [[nodiscard]] torch::autograd::variable_list gradients(ranks::Ranks& ranks,
                                                         const torch::autograd::variable_list& of_roots,
                                                         const std::vector<bool>& wanted);

 private:
  [[nodiscard]] bool is_common(const torch::autograd::Edge& end) const;
  [[nodiscard]] torch::autograd::variable_list gradients_here(const torch::autograd::variable_list& of_roots,
                                                              const std::vector<bool>& wanted);
  void sum(ranks::Ranks& ranks, const std::vector<std::size_t>& common,
           torch::autograd::variable_list& gradients) const;

  torch::autograd::edge_list roots_, ends_;
  std::vector<ResultNode*> nodes_;
};

}  // namespace autopar::results
