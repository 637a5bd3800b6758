#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "ops/rules.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

namespace autopar::algebra {

/// The larger of both, separately for each coefficient.
[[nodiscard]] inline Affine larger(const Affine& a, const Affine& b) {
  return {std::max(a.per_sample, b.per_sample), std::max(a.fixed, b.fixed)};
}

/// The memory while an operator or its backward runs, in addition to what operators save for backwards. It consists of
/// results and operands that no operator saves, of gradients, and of values that wait for other readers.
class Workspaces {
 public:
  /// @param kept   [storage] whether an operator saves it
  /// @param steps  exchanges of tensor shards at operators, if the program is one shard's; must outlive the object
  Workspaces(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<bool>& kept,
             const std::map<OpId, tensor_parallel::ShardedStep>& steps);

  struct Need {
    Affine forward, backward;  ///< bytes
  };
  [[nodiscard]] Need of(const OpCall& op) const;
  /// Whether its backward receives the gradients of two readers of its result.
  [[nodiscard]] bool takes_two_gradients(const OpCall& op) const;

 private:
  [[nodiscard]] Affine forward(const OpCall& op) const;
  [[nodiscard]] Affine backward(const OpCall& op) const;
  [[nodiscard]] Affine exchanged_by(const OpCall& op) const;

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  const std::vector<bool>& kept_;
  const std::map<OpId, tensor_parallel::ShardedStep>& steps_;
  std::vector<int> readers_;       ///< by value
  std::vector<bool> overwritten_;  ///< by storage: saved until its gradient is written over it
  std::vector<OpId> maker_;        ///< by storage: the first operator with a result in it
  std::vector<Affine> passing_;    ///< by operator: bytes made before, read by it or later, and saved by no operator
  std::vector<Affine> waiting_;    ///< by operator: gradients of values made before and read again later
};

}  // namespace autopar::algebra
