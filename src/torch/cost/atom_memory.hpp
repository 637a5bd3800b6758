#pragma once

#include <map>
#include <set>
#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/cost/model_profile.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/cost/partition.hpp"
#include "torch/tensor_parallel/followers.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"
#include "torch/tensor_parallel/tensor_candidates.hpp"

namespace autopar::cost {

/// What the atoms of a program save from forward until backward, and their workspaces. Refers to the program.
class ProgramMemory {
 public:
  /// @param steps  exchanges of tensor shards at operators of `graph`, if it is the program of one shard
  /// @cost O((ops + values) log ops)
  ProgramMemory(const OpGraph& graph, const algebra::BatchSemantics& plan, const AtomPartition& atoms,
                const AlgebraOptions& options, const std::map<OpId, tensor_parallel::ShardedStep>& steps = {});

  [[nodiscard]] const AtomMemory& of(NodeId atom) const { return of_atom_[atom.index()]; }
  /// Whether the atom saves the value's memory.
  [[nodiscard]] bool is_kept_by(NodeId atom, ValueId value) const;
  /// For a value that the atom makes, see ValueProfile::for_readers.
  [[nodiscard]] bool is_kept_for_readers(NodeId atom, ValueId value) const;
  /// For a value that the atom makes, see ValueProfile::two_gradients.
  [[nodiscard]] bool takes_two_gradients(NodeId atom, ValueId value) const;

 private:
  void find_creators();
  void add_saved();
  void add_saved(OpId op, const Affine& bytes);
  void add_workspaces(const std::map<OpId, tensor_parallel::ShardedStep>& steps);
  void add_deferred_weight(const OpCall& op, std::vector<bool>& waits);
  [[nodiscard]] Affine memory_of(StorageId storage, ValueId view);
  [[nodiscard]] OpCall context(OpId op) const { return {graph_, plan_.values, options_, op}; }
  [[nodiscard]] AtomMemory& at(OpId op) { return of_atom_[atoms_.atom_of[op.index()].index()]; }

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  const AtomPartition& atoms_;
  const AlgebraOptions options_;
  std::vector<OpId> creator_;    ///< by storage
  std::vector<Affine> saved_;    ///< by op: bytes of its results that some op saves
  std::vector<bool> kept_;       ///< by storage
  std::vector<ValueId> makers_;  ///< by storage: first value
  std::vector<AtomMemory> of_atom_;
  std::vector<std::set<NodeId>> keepers_;  ///< by storage: atoms that need it for their backwards
  std::vector<std::set<NodeId>> readers_;  ///< by value
  std::vector<bool> two_gradients_;        ///< by op: see Workspaces::takes_two_gradients
};

/// The same for atoms that follow candidates and are divided by tokens. What candidates keep of values that are
/// gathered for them counts at the atoms that make the values.
[[nodiscard]] std::vector<AtomMemory> memory_on_each_shard(const OpGraph& graph, const AtomPartition& atoms,
                                                           const tensor_parallel::Followers& followers,
                                                           const ProgramMemory& takes, const AlgebraOptions& options);

/// The part of atoms' memory that each tensor shard has, however many there are: unsharded values, and buffers of
/// exchanges. `takes[atom]` of the whole program minus this part is proportional to the shard's share of units.
/// @param candidates  in one program; no two share an operator
/// @return by atom; zero for atoms of no candidate
/// @cost one analysis of the program, and two of its memory
[[nodiscard]] std::vector<AtomMemory> memory_on_each_shard(
    const OpGraph& graph, const AtomPartition& atoms, const std::vector<tensor_parallel::TensorCandidate>& candidates,
    const ProgramMemory& takes, const AlgebraOptions& options);

}  // namespace autopar::cost
