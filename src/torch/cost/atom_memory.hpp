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

/// What the atoms of a program keep from forward until backward, and take beside it while they run. Refers to the
/// program.
class ProgramMemory {
 public:
  /// @param steps  what tensor shards do at operators of `graph`, where it is the program of one
  /// @cost O((ops + values) log ops)
  ProgramMemory(const OpGraph& graph, const algebra::BatchSemantics& plan, const AtomPartition& atoms,
                const AlgebraOptions& options, const std::map<OpId, tensor_parallel::ShardedStep>& steps = {});

  [[nodiscard]] const AtomMemory& of(NodeId atom) const { return of_atom_[atom.index()]; }
  /// Whether a value's memory is in what the atom keeps.
  [[nodiscard]] bool is_kept_by(NodeId atom, ValueId value) const;
  /// Of a value that the atom makes, see ValueProfile::for_readers.
  [[nodiscard]] bool is_kept_for_readers(NodeId atom, ValueId value) const;
  /// Likewise, see ValueProfile::two_gradients.
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
  std::vector<Affine> saved_;    ///< by op: of what it makes, what some op keeps
  std::vector<bool> kept_;       ///< by storage
  std::vector<ValueId> makers_;  ///< by storage: first value
  std::vector<AtomMemory> of_atom_;
  std::vector<std::set<NodeId>> keepers_;  ///< by storage: atoms that need it for their backwards
  std::vector<std::set<NodeId>> readers_;  ///< by value
  std::vector<bool> two_gradients_;        ///< by op: see Workspaces::takes_two_gradients
};

/// The same of atoms that lie behind candidates and are cut by tokens. What candidates then keep of values that are
/// brought together for them counts where these are made.
[[nodiscard]] std::vector<AtomMemory> memory_on_each_shard(const OpGraph& graph, const AtomPartition& atoms,
                                                           const tensor_parallel::Followers& followers,
                                                           const ProgramMemory& takes, const AlgebraOptions& options);

/// Of what atoms take, what each tensor shard takes of it however many there are: whole values, and what is there while
/// shards exchange some. `takes[atom]` of the whole program, less this, goes with the shard's share of units.
/// @param candidates  in one program; no two share an operator
/// @return by atom; nothing for those of no candidate
/// @cost of analysing the program once and of its memory twice
[[nodiscard]] std::vector<AtomMemory> memory_on_each_shard(
    const OpGraph& graph, const AtomPartition& atoms, const std::vector<tensor_parallel::TensorCandidate>& candidates,
    const ProgramMemory& takes, const AlgebraOptions& options);

}  // namespace autopar::cost
