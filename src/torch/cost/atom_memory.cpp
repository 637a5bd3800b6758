#include "torch/cost/atom_memory.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>

#include "torch/autograd/split_backward.hpp"
#include "torch/cost/workspace.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"

namespace autopar::cost {

ProgramMemory::ProgramMemory(const OpGraph& graph, const algebra::BatchSemantics& plan, const AtomPartition& atoms,
                             const AlgebraOptions& options, const std::map<OpId, tensor_parallel::ShardedStep>& steps)
    : graph_(graph),
      plan_(plan),
      atoms_(atoms),
      options_(options),
      creator_(static_cast<std::size_t>(graph.storage_count), OpId::none()),
      saved_(graph.ops.size()),
      kept_(static_cast<std::size_t>(graph.storage_count), false),
      of_atom_(atoms.atoms.size()),
      keepers_(static_cast<std::size_t>(graph.storage_count)),
      readers_(graph.values.size()),
      two_gradients_(graph.ops.size(), false) {
  find_creators();
  add_saved();
  add_workspaces(steps);
}

bool ProgramMemory::is_kept_by(NodeId atom, ValueId value) const {
  const auto storage = graph_.value(value).storage;
  if (!storage.valid() || !kept_[storage.index()]) return false;
  const auto creator = creator_[storage.index()];
  return creator.valid() && atoms_.atom_of[creator.index()] == atom;
}

// Callers know only the readers of this value, so an atom that keeps another view of its memory rules this out.
bool ProgramMemory::is_kept_for_readers(NodeId atom, ValueId value) const {
  if (!is_kept_by(atom, value)) return false;
  const auto& keepers = keepers_[graph_.value(value).storage.index()];
  return !keepers.contains(atom) && std::ranges::includes(readers_[value.index()], keepers);
}

// In an atom with several operators, another one may have the largest workspace.
bool ProgramMemory::takes_two_gradients(NodeId atom, ValueId value) const {
  const auto& ops = atoms_.atoms[atom.index()];
  return ops.size() == 1 && graph_.output(ops.front()) == value && two_gradients_[ops.front().index()];
}

void ProgramMemory::find_creators() {
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {  // values that are made once for a call are not activations
    if (plan_.ops[i].once) kept_[graph_.value(graph_.output(OpId::of(i))).storage.index()] = true;
  }
  for (const auto& ops : atoms_.atoms) {
    for (const auto op : ops) {
      for_each_output(graph_.op(op), [&](ValueId value) {
        const auto storage = graph_.value(value).storage;
        if (storage.valid() && !creator_[storage.index()].valid()) creator_[storage.index()] = op;
      });
    }
  }
}

// Each memory is counted once, however many ops need it, at the atom that makes it.
void ProgramMemory::add_saved() {
  for (const auto& ops : atoms_.atoms) {
    for (const auto id : ops) {
      for_each_input(graph_.op(id), [&](ValueId value) { readers_[value.index()].insert(atoms_.atom_of[id.index()]); });
      const auto saved = ops::saved_by(context(id));
      add_saved(id, saved.internal);
      for (const auto value : saved.values) {
        const auto storage = graph_.value(value).storage;
        if (storage.valid()) keepers_[storage.index()].insert(atoms_.atom_of[id.index()]);
        if (!storage.valid() || kept_[storage.index()] || plan_.is_prologue(value)) continue;
        const auto creator = creator_[storage.index()];
        if (!creator.valid()) continue;
        kept_[storage.index()] = true;
        add_saved(creator, memory_of(storage, value));
      }
    }
  }
}
void ProgramMemory::add_saved(OpId op, const Affine& bytes) {
  saved_[op.index()] += bytes;
  at(op).saved += bytes;
}

// An op's workspace is in addition to what earlier ops have saved.
void ProgramMemory::add_workspaces(const std::map<OpId, tensor_parallel::ShardedStep>& steps) {
  const algebra::Workspaces workspaces(graph_, plan_, kept_, steps);
  std::vector<bool> waits(kept_.size(), false);
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    const auto id = OpId::of(i);
    if (plan_.ops[i].once || !atoms_.atom_of[i].valid()) continue;
    const auto op = context(id);
    const auto need = workspaces.of(op);
    two_gradients_[i] = workspaces.takes_two_gradients(op);
    const auto add = [&](Affine& sum, const Affine& bytes) {
      sum -= saved_[i];
      sum = algebra::larger(sum, bytes);
    };
    add(at(id).workspace, algebra::larger(need.forward, need.backward));
    add(at(id).forward_workspace, need.forward);
    add_deferred_weight(op, waits);
  }
}

// A deferred weight backward needs the gradients of the results and what the op read, so these stay in memory.
void ProgramMemory::add_deferred_weight(const OpCall& op, std::vector<bool>& waits) {
  const auto split = autograd::split_backward_of(graph_, plan_, op.id());
  if (!split || !graph_.value(split->weight).requires_grad) return;
  at(op.id()).deferred_weight += ops::bytes_of(graph_, op.results().front());
  const auto read = graph_.input(op.id(), split->x_at);
  const auto storage = graph_.value(read).storage;
  if (!storage.valid() || !kept_[storage.index()] || waits[storage.index()]) return;
  const auto creator = creator_[storage.index()];
  if (!creator.valid() || plan_.is_prologue(read)) return;
  waits[storage.index()] = true;
  at(creator).deferred_weight += memory_of(storage, read);
}

/// Bytes of a storage: of the value that it was made for, or else of the given view.
Affine ProgramMemory::memory_of(StorageId storage, ValueId view) {
  if (makers_.empty()) {
    makers_.assign(static_cast<std::size_t>(graph_.storage_count), ValueId::none());
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      const auto made_in = graph_.values[i].storage;
      if (made_in.valid() && !makers_[made_in.index()].valid()) makers_[made_in.index()] = ValueId::of(i);
    }
  }
  const auto maker = makers_[storage.index()];
  return ops::bytes_of(graph_, maker.valid() ? maker : view);
}

namespace {

/// The program with the exchanges of tensor shards, for any number of shards in its stages.
class ProgramOfShards {
 public:
  ProgramOfShards(const OpGraph& graph, const AtomPartition& atoms,
                  const std::vector<tensor_parallel::ShardedStage>& stages, const AlgebraOptions& options)
      : options_(options),
        sharded_(tensor_parallel::insert_moves(graph, stages)),
        plan_(algebra::analyze_batch(sharded_.graph, options)) {
    auto made_for = sharded_.made_for;
    const auto kept = kept_whole();
    for (const auto& [op, step] : sharded_.steps) {
      const auto value = sharded_.graph.input(op, 0);
      // Gathering a value from slices of tokens counts at the atom that makes the value. So does a slice that is kept
      // instead of the whole value, whose memory it replaces.
      const bool in_place = step.move == ir::ShardMove::kScatter && !kept[sharded_.graph.value(value).storage.index()];
      if (step.move != ir::ShardMove::kAssemble && step.move != ir::ShardMove::kAllGather && !in_place) continue;
      const auto maker = sharded_.graph.value(value).definer;
      if (maker.valid()) made_for[op.index()] = made_for[maker.index()];
    }
    atoms_ = with_operators(atoms, made_for);
  }

  /// Memory of the largest shard.
  /// @param shards  by stage
  [[nodiscard]] std::vector<AtomMemory> memory(const std::vector<std::int64_t>& shards) {
    for (auto& [value, slices] : sharded_.slices) slices.shards = static_cast<int>(shards[slices.stage]);
    OpGraph own = tensor_parallel::on_shard(sharded_, std::vector<std::optional<int>>(shards.size(), 0));
    for (const auto& [op, step] : sharded_.steps) {
      if (step.move == ir::ShardMove::kCopy)  // the same memory
        own.value(own.output(op)).storage = own.value(own.input(op, 0)).storage;
    }
    const ProgramMemory takes(own, plan_, atoms_, options_, sharded_.steps);
    std::vector<AtomMemory> out;
    for (std::size_t k = 0; k < atoms_.atoms.size(); ++k) out.push_back(takes.of(NodeId::of(k)));
    return out;
  }

 private:
  /// By storage, whether some operator keeps it whole for its backward.
  [[nodiscard]] std::vector<bool> kept_whole() const {
    const auto& graph = sharded_.graph;
    std::vector<bool> kept(static_cast<std::size_t>(graph.storage_count), false);
    const auto at = [&](ValueId value) -> std::vector<bool>::reference {
      return kept[graph.value(value).storage.index()];
    };
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      for (const auto value : ops::saved_by({graph, plan_.values, options_, OpId::of(i)}).values) {
        if (graph.value(value).storage.valid()) at(value) = true;
      }
    }
    for (const auto& [op, step] : sharded_.steps) {
      if (step.move == ir::ShardMove::kCopy && at(graph.output(op))) at(graph.input(op, 0)) = true;  // the same memory
    }
    return kept;
  }

  AlgebraOptions options_;
  tensor_parallel::ShardedGraph sharded_;
  algebra::BatchSemantics plan_;
  AtomPartition atoms_;
};

/// The part that does not scale with the share of units: a line through `all` for the whole program and `part` for this
/// share.
Affine whole_of(const Affine& part, const Affine& all, double share) {
  const auto of = [&](double a, double b) { return std::max(0.0, (a - b * share) / (1 - share)); };
  return {of(part.per_sample, all.per_sample), of(part.fixed, all.fixed)};
}

constexpr std::int64_t kManyShards = 1 << 10;  // so many that one shard has almost nothing

/// Adds the part of these operators' atoms that each shard has whole.
/// @param parts   memory of atoms on one of `shards` shards
/// @param units   number of units that are divided
void add_whole(std::vector<AtomMemory>& out, const std::vector<AtomMemory>& parts, const ProgramMemory& takes,
               const AtomPartition& atoms, const std::vector<OpId>& ops, std::int64_t units, std::int64_t shards) {
  const auto most = Split::longest_in_packs(units, static_cast<int>(shards));
  const double share = static_cast<double>(most) / static_cast<double>(units);
  if (share >= 1) return;
  std::set<NodeId> own;
  for (const auto op : ops) own.insert(atoms.atom_of[op.index()]);
  for (const auto atom : own) {
    const auto &part = parts[atom.index()], &all = takes.of(atom);
    auto& whole = out[atom.index()];
    whole.saved = algebra::larger(whole.saved, whole_of(part.saved, all.saved, share));
    whole.workspace = algebra::larger(whole.workspace, whole_of(part.workspace, all.workspace, share));
    whole.forward_workspace =
        algebra::larger(whole.forward_workspace, whole_of(part.forward_workspace, all.forward_workspace, share));
    whole.deferred_weight =
        algebra::larger(whole.deferred_weight, whole_of(part.deferred_weight, all.deferred_weight, share));
  }
}

}  // namespace

// An atom's memory is the maximum of sums that are linear in the share. A line above it at the smallest share and at
// one half is therefore above it between them.
std::vector<AtomMemory> memory_on_each_shard(const OpGraph& graph, const AtomPartition& atoms,
                                             const std::vector<tensor_parallel::TensorCandidate>& candidates,
                                             const ProgramMemory& takes, const AlgebraOptions& options) {
  std::vector<AtomMemory> out(atoms.atoms.size());
  if (candidates.empty()) return out;
  std::vector<tensor_parallel::ShardedStage> stages;
  for (const auto& candidate : candidates) {
    const auto is_member = [&](OpId op) { return std::ranges::binary_search(candidate.ops, op); };
    stages.push_back(
        {2, tensor_parallel::ShardTyping(graph, is_member).run(candidate.leaves, [](ValueId) { return false; })});
  }
  ProgramOfShards program(graph, atoms, stages, options);
  for (const auto most : {kManyShards, std::int64_t{2}}) {
    std::vector<std::int64_t> shards;
    for (const auto& candidate : candidates) shards.push_back(std::min(candidate.units, most));
    const auto parts = program.memory(shards);
    for (std::size_t c = 0; c < candidates.size(); ++c)
      add_whole(out, parts, takes, atoms, candidates[c].ops, candidates[c].units, shards[c]);
  }
  return out;
}

std::vector<AtomMemory> memory_on_each_shard(const OpGraph& graph, const AtomPartition& atoms,
                                             const tensor_parallel::Followers& followers, const ProgramMemory& takes,
                                             const AlgebraOptions& options) {
  std::vector<AtomMemory> out(atoms.atoms.size());
  if (followers.all.empty()) return out;
  ProgramOfShards program(graph, atoms, {{2, followers.layout}}, options);
  for (const auto shards : {kManyShards, std::int64_t{2}}) {
    const auto parts = program.memory({shards});
    for (const auto& follower : followers.all)
      add_whole(out, parts, takes, atoms, follower.ops, follower.tokens, shards);
  }
  return out;
}

}  // namespace autopar::cost
