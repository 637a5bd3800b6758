#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "ops/rules.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

namespace autopar::algebra {

/// Of both, in each of their parts.
[[nodiscard]] inline Affine larger(const Affine& a, const Affine& b) {
  return {std::max(a.per_sample, b.per_sample), std::max(a.fixed, b.fixed)};
}

/// What is in memory while an operator or its backward runs, beside what operators keep for their backwards: results
/// and operands that nobody keeps, gradients, and what waits for other readers.
class Workspaces {
 public:
  /// @param kept   [storage] whether an operator keeps it
  /// @param steps  what tensor shards do at operators, where the program is one shard's; must outlive this
  Workspaces(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<bool>& kept,
             const std::map<OpId, tensor_parallel::ShardedStep>& steps);

  struct Need {
    Affine forward, backward;  ///< bytes
  };
  [[nodiscard]] Need of(const OpCall& op) const;
  /// Whether its backward is given those of two readers of its result.
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
  std::vector<bool> overwritten_;  ///< by storage: kept until its gradient is written over it
  std::vector<OpId> maker_;        ///< by storage: the first operator with a result in it
  std::vector<Affine> passing_;    ///< by operator: made before, read by it or later, and kept by nobody
  std::vector<Affine> waiting_;    ///< by operator: gradients of what is made before and read again later
};

}  // namespace autopar::algebra
