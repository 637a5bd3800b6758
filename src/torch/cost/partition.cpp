#include "torch/cost/partition.hpp"

#include <algorithm>

#include <autopar/graph/algorithms/acyclic_coarsening.hpp>
#include <autopar/graph/graph.hpp>

#include "ops/registry.hpp"

namespace autopar::cost {
namespace {

/// Finds groups of ops that must not be separated. Node k of its graph is the k-th op of the pipeline.
class Grouping {
 public:
  Grouping(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<std::vector<OpId>>& ties)
      : graph_(graph), plan_(plan), node_of_(graph.ops.size()) {
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      if (!plan.ops[i].in_stage) continue;
      node_of_[i] = NodeId::of(ops_.size());
      ops_.push_back(OpId::of(i));
    }
    for (const auto& tie : ties) {
      auto& group = groups_.emplace_back();
      for (const auto op : tie) group.push_back(node_of_[op.index()]);
    }
  }

  AtomPartition run() && {
    connect();
    group_written_memory();
    group_bound_values();
    group_shared_ops();
    group_isolated_ops();
    const auto partition = acyclic_coarsening(dependencies_, groups_);
    AtomPartition result;
    result.atom_of.assign(graph_.ops.size(), NodeId::none());
    result.atoms.resize(partition.block_count());
    for (std::size_t k = 0; k < ops_.size(); ++k) {
      const auto block = partition.block_of(NodeId::of(k));
      result.atoms[block.index()].push_back(ops_[k]);
      result.atom_of[ops_[k].index()] = NodeId(block.value());
    }
    return result;
  }

 private:
  /// The node that makes a value in the pipeline; none for leaves and prologue values.
  [[nodiscard]] NodeId maker(ValueId value) const {
    const auto definer = graph_.value(value).definer;
    if (!definer.valid() || plan_.is_prologue(value)) return NodeId::none();
    return node_of_[definer.index()];
  }

  void connect() {
    dependencies_.reserve(ops_.size(), 2 * ops_.size());
    for (std::size_t k = 0; k < ops_.size(); ++k) dependencies_.add_node();
    readers_.resize(graph_.values.size());
    for (std::size_t k = 0; k < ops_.size(); ++k) {
      for_each_input(graph_.op(ops_[k]), [&](ValueId value) {
        readers_[value.index()].push_back(NodeId::of(k));
        if (const auto from = maker(value); from.valid()) dependencies_.add_edge(from, NodeId::of(k));
      });
    }
  }

  void group_written_memory() {
    const auto storages = static_cast<std::size_t>(graph_.storage_count);
    std::vector<std::vector<NodeId>> touching(storages);
    std::vector<NodeId> last_write(storages);
    std::vector<bool> is_buffer(storages, false);
    for (const auto& info : graph_.values) {
      if (info.kind == ValueKind::kBuffer && info.storage.valid()) is_buffer[info.storage.index()] = true;
    }
    for (std::size_t k = 0; k < ops_.size(); ++k) {
      const auto& node = graph_.op(ops_[k]);
      std::vector<StorageId> touched = node.writes;
      const auto touch = [&](ValueId value) {
        if (const auto storage = graph_.value(value).storage; storage.valid()) touched.push_back(storage);
      };
      for_each_input(node, touch);
      for_each_output(node, touch);
      std::sort(touched.begin(), touched.end());
      touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
      for (const auto storage : touched) touching[storage.index()].push_back(NodeId::of(k));
      for (const auto storage : node.writes) {
        const bool creates = touching[storage.index()].front() == NodeId::of(k) && !is_leaf(storage);
        if (!creates) last_write[storage.index()] = NodeId::of(k);
      }
      const auto norm = plan_.handling(ops_[k]).batch_norm;
      if (norm < 0) continue;
      const auto& plan = plan_.batch_norms[static_cast<std::size_t>(norm)];
      for (const auto buffer : {plan.running_mean, plan.running_var}) {
        if (buffer.valid()) last_write[graph_.value(buffer).storage.index()] = NodeId::of(k);
      }
    }
    for (std::size_t s = 0; s < storages; ++s) {
      if (!last_write[s].valid()) continue;
      auto& group = groups_.emplace_back();
      for (const auto node : touching[s]) {
        if (is_buffer[s] || node <= last_write[s]) group.push_back(node);
      }
    }
  }

  [[nodiscard]] bool is_leaf(StorageId storage) {
    if (leaf_storage_.empty()) {
      leaf_storage_.assign(static_cast<std::size_t>(graph_.storage_count), false);
      for (const auto& info : graph_.values) {
        if (info.is_leaf() && info.storage.valid()) leaf_storage_[info.storage.index()] = true;
      }
    }
    return leaf_storage_[storage.index()];
  }

  void group_bound_values() {
    for (std::size_t v = 0; v < graph_.values.size(); ++v) {
      const auto& type = plan_.values[v];
      if (!type.is(BatchKind::kSampleIndex) && !type.is(BatchKind::kRowStart) && !type.is(BatchKind::kStatistic))
        continue;
      const auto from = maker(ValueId::of(v));
      if (!from.valid()) continue;
      auto& group = groups_.emplace_back(1, from);
      group.insert(group.end(), readers_[v].begin(), readers_[v].end());
    }
  }

  enum class Origin : std::uint8_t { kConstants, kParameters, kSamples };

  /// What the ops depend on: samples (also through other ops), otherwise parameters and buffers, otherwise constants.
  [[nodiscard]] std::vector<Origin> origins() const {
    std::vector<Origin> origin(ops_.size(), Origin::kConstants);
    for (std::size_t k = 0; k < ops_.size(); ++k) {
      const auto raise = [&](Origin to) { origin[k] = std::max(origin[k], to); };
      if (plan_.handling(ops_[k]).whole_batch) raise(Origin::kSamples);
      for_each_output(graph_.op(ops_[k]), [&](ValueId value) {
        const auto& type = plan_.type(value);
        if (type.is(BatchKind::kPartialSum)) raise(Origin::kSamples);
      });
      for_each_input(graph_.op(ops_[k]), [&](ValueId value) {
        const auto& info = graph_.value(value);
        if (const auto from = maker(value); from.valid()) raise(origin[from.index()]);
        if (info.kind == ValueKind::kInput) raise(Origin::kSamples);
        if (info.kind == ValueKind::kParameter || info.kind == ValueKind::kBuffer) raise(Origin::kParameters);
      });
    }
    return origin;
  }

  // In reverse program order, every op without samples learns its earliest reader with samples. A parameter belongs to
  // the first op that applies it (or a view of it) to samples. Other ops that compute from the parameter belong there,
  // too.
  void group_shared_ops() {
    const auto origin = origins();
    std::vector<NodeId> first_reader(ops_.size());
    const auto earlier = [](NodeId a, NodeId b) { return !a.valid() ? b : (!b.valid() ? a : std::min(a, b)); };
    std::vector<NodeId> applied(graph_.values.size());  // by parameter: first reader with samples, through views
    const auto is_view = [&](NodeId node) {             // or a cast, which every stage that needs it computes itself
      const auto op = ops_[node.index()];
      return plan_.handling(op).once || ops::definition_of(graph_.name(op)).is_view();
    };
    for (std::size_t k = ops_.size(); k-- > 0;) {
      const auto node = NodeId::of(k);
      NodeId direct;
      for_each_output(graph_.op(ops_[k]), [&](ValueId value) {
        for (const auto reader : readers_[value.index()]) {
          if (origin[reader.index()] == Origin::kSamples) direct = earlier(direct, reader);
          first_reader[k] = earlier(first_reader[k],
                                    origin[reader.index()] == Origin::kSamples ? reader : first_reader[reader.index()]);
        }
      });
      for_each_input(graph_.op(ops_[k]), [&](ValueId value) {
        if (origin[k] == Origin::kSamples)
          applied[value.index()] = earlier(applied[value.index()], node);
        else if (is_view(node)) {
          for_each_output(graph_.op(ops_[k]), [&](ValueId result) {
            applied[value.index()] = earlier(applied[value.index()], applied[result.index()]);
          });
        }
      });
      if (is_view(node) && direct.valid()) first_reader[k] = direct;
    }
    for (std::size_t k = 0; k < ops_.size(); ++k) {
      if (origin[k] == Origin::kSamples) continue;
      NodeId home;
      if (origin[k] == Origin::kParameters && !is_view(NodeId::of(k))) home = owner_of(NodeId::of(k), applied);
      if (!home.valid()) home = first_reader[k];
      if (home.valid()) groups_.push_back({NodeId::of(k), home});
      owner_.resize(ops_.size());
      owner_[k] = home;
    }
  }

  /// The op that applies the parameters that `node` depends on, if it is one op.
  [[nodiscard]] NodeId owner_of(NodeId node, const std::vector<NodeId>& applied) const {
    NodeId owner;
    bool several = false;
    for_each_input(graph_.op(ops_[node.index()]), [&](ValueId value) {
      const auto& info = graph_.value(value);
      const auto from = maker(value);
      const auto own = from.valid() ? (from.index() < owner_.size() ? owner_[from.index()] : NodeId::none())
                                    : (info.is_leaf() ? applied[value.index()] : NodeId::none());
      if (!own.valid()) return;
      several = several || (owner.valid() && owner != own);
      owner = own;
    });
    return several ? NodeId::none() : owner;
  }

  // A counter that nothing reads belongs to the next layer in the program.
  void group_isolated_ops() {
    for (std::size_t k = 0; k + 1 < ops_.size(); ++k) {
      const auto node = NodeId::of(k);
      const bool alone = dependencies_.in_edges(node).empty() && dependencies_.out_edges(node).empty();
      if (alone && !is_output(ops_[k])) groups_.push_back({node, NodeId::of(k + 1)});
    }
  }

  [[nodiscard]] bool is_output(OpId op) const {
    bool found = false;
    for_each_output(graph_.op(op), [&](ValueId value) {
      found = found || std::find(graph_.outputs.begin(), graph_.outputs.end(), value) != graph_.outputs.end();
    });
    return found;
  }

  struct Nothing {};

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  std::vector<OpId> ops_;
  std::vector<NodeId> node_of_;  ///< by OpId
  std::vector<std::vector<NodeId>> readers_;
  std::vector<bool> leaf_storage_;
  std::vector<NodeId> owner_;
  Graph<Nothing, Nothing> dependencies_;
  std::vector<std::vector<NodeId>> groups_;
};

}  // namespace

AtomPartition partition_into_atoms(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                   const std::vector<std::vector<OpId>>& ties) {
  if (graph.ops.empty()) return {};
  return Grouping(graph, plan, ties).run();
}

AtomPartition with_operators(const AtomPartition& atoms, const std::vector<OpId>& made_for) {
  AtomPartition out{std::vector<std::vector<OpId>>(atoms.atoms.size()), {}};
  for (std::size_t i = 0; i < made_for.size(); ++i) {
    const auto atom = atoms.atom_of[made_for[i].index()];
    out.atom_of.push_back(atom);
    if (atom.valid()) out.atoms[atom.index()].push_back(OpId::of(i));
  }
  return out;
}

}  // namespace autopar::cost
