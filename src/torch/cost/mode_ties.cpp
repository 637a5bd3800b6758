#include "torch/cost/mode_ties.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include <autopar/graph/algorithms/acyclic_coarsening.hpp>
#include <autopar/graph/graph.hpp>

namespace autopar::cost {
namespace {

/// By name of a parameter or buffer, the atoms that read it, ascending.
using Readers = std::map<std::string, std::vector<std::size_t>>;

/// Sorts and removes duplicates.
template <class T>
void keep_one_each(std::vector<T>& items) {
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
}

/// The atoms of one mode.
struct Atoms {
  explicit Atoms(const ModeOfModel& mode) : partition(partition_into_atoms(mode.graph, mode.plan)) {
    before.resize(partition.atoms.size());
    for (std::size_t atom = 0; atom < before.size(); ++atom) {
      for (const auto op : partition.atoms[atom]) {
        for_each_input(mode.graph.op(op), [&](ValueId value) { add_read(mode, atom, value); });
      }
      keep_one_each(before[atom]);
    }
  }

  AtomPartition partition;
  std::vector<std::vector<std::size_t>> before;  ///< [atom] atoms whose values it reads, ascending
  Readers readers;

 private:
  void add_read(const ModeOfModel& mode, std::size_t atom, ValueId value) {
    const auto& info = mode.graph.value(value);
    if (mode.plan.is_prologue(value)) return;
    if (info.kind == ValueKind::kParameter || info.kind == ValueKind::kBuffer) {
      auto& known = readers[info.name];
      if (known.empty() || known.back() != atom) known.push_back(atom);
    } else if (info.definer.valid()) {
      const auto maker = partition.atom_of[info.definer.index()];
      if (maker.valid() && maker.index() != atom) before[atom].push_back(maker.index());
    }
  }
};

/// Both modes in one graph. Its first nodes are the atoms of the mode that is partitioned.
class JointModes {
 public:
  JointModes(const ModeOfModel& mode, const ModeOfModel& other) : mode_(mode), other_(other) {
    const auto nodes = count() + other_.before.size();
    for (std::size_t node = 0; node < nodes; ++node) joint_.add_node();
    for (std::size_t atom = 0; atom < count(); ++atom) {
      for (const auto from : mode_.before[atom]) joint_.add_edge(NodeId::of(from), NodeId::of(atom));
    }
    for (std::size_t atom = 0; atom < other_.before.size(); ++atom) {
      for (const auto from : other_.before[atom]) joint_.add_edge(of_other(from), of_other(atom));
    }
    match();
  }

  std::vector<std::vector<OpId>> ties() && {
    do {
      const auto blocks = acyclic_coarsening(joint_, groups_);
      block_of_.resize(joint_.node_count());
      for (std::size_t node = 0; node < block_of_.size(); ++node)
        block_of_[node] = blocks.block_of(NodeId::of(node)).index();
      members_.assign(blocks.block_count(), {});
      for (std::size_t atom = 0; atom < count(); ++atom) members_[block_of_[atom]].push_back(atom);
      find_order();
    } while (add_missing_order());
    std::vector<std::vector<OpId>> ties;
    for (const auto& atoms : members_) {
      if (atoms.size() < 2) continue;
      auto& tie = ties.emplace_back();
      for (const auto atom : atoms) tie.push_back(mode_.partition.atoms[atom].front());
    }
    return ties;
  }

 private:
  [[nodiscard]] std::size_t count() const { return mode_.before.size(); }
  [[nodiscard]] NodeId of_other(std::size_t atom) const { return NodeId::of(count() + atom); }

  /// An atom of the other mode runs where the parameters that it reads are read. An atom that runs a layer again must
  /// not tie everything between its runs, which the partitioned mode does not have.
  void match() {
    for (const auto& [name, readers] : other_.readers) {
      const auto own = mode_.readers.find(name);
      if (own == mode_.readers.end()) continue;
      const auto& matching = own->second;
      if (matching.size() != 1 && matching.size() != readers.size()) continue;
      for (std::size_t i = 0; i < matching.size(); ++i) {
        groups_.push_back({NodeId::of(matching[i]), of_other(readers[i])});
      }
    }
  }

  /// Finds the blocks that directly precede each block in the partitioned mode.
  void find_order() {
    before_.assign(members_.size(), {});
    for (std::size_t atom = 0; atom < count(); ++atom) {
      for (const auto from : mode_.before[atom]) {
        if (block_of_[from] != block_of_[atom]) before_[block_of_[atom]].push_back(block_of_[from]);
      }
    }
    for (auto& blocks : before_) keep_one_each(blocks);
  }

  /// Ties two atoms that only the other mode orders.
  /// @return whether there are any
  bool add_missing_order() {
    bool added = false;
    std::vector<std::vector<std::size_t>> nearest(members_.size());  // preceding blocks of the partitioned mode
    std::vector<std::pair<std::size_t, std::size_t>> edges;          // sorted by the blocks that they lead to
    for (std::size_t atom = 0; atom < other_.before.size(); ++atom) {
      const auto to = block_of_[count() + atom];
      for (const auto from : other_.before[atom]) edges.emplace_back(to, block_of_[count() + from]);
    }
    keep_one_each(edges);
    for (auto edge = edges.begin(); edge != edges.end();) {
      const auto to = edge->first;
      std::vector<std::size_t> sources;
      for (; edge != edges.end() && edge->first == to; ++edge) {
        const auto from = edge->second;
        if (from == to) continue;
        if (members_[from].empty())
          sources.insert(sources.end(), nearest[from].begin(), nearest[from].end());
        else
          sources.push_back(from);
      }
      keep_one_each(sources);
      if (members_[to].empty()) {
        nearest[to] = std::move(sources);
        continue;
      }
      for (const auto source : missing_before(to, sources)) {
        groups_.push_back({NodeId::of(members_[source].front()), NodeId::of(members_[to].front())});
        added = true;
      }
    }
    return added;
  }

  /// The blocks of `blocks` that the partitioned mode itself does not order before `later`, ascending. Blocks are
  /// numbered in an order of both modes.
  [[nodiscard]] std::vector<std::size_t> missing_before(std::size_t later,
                                                        const std::vector<std::size_t>& blocks) const {
    std::vector<std::size_t> missing;
    const auto& right_before = before_[later];
    std::set_difference(blocks.begin(), blocks.end(), right_before.begin(), right_before.end(),
                        std::back_inserter(missing));
    if (missing.empty()) return missing;
    const auto earliest = missing.front();
    std::vector<bool> seen(later - earliest, false);
    std::vector<std::size_t> open{later};
    while (!open.empty()) {
      const auto at = open.back();
      open.pop_back();
      for (const auto from : before_[at]) {
        if (from < earliest || seen[from - earliest]) continue;
        seen[from - earliest] = true;
        open.push_back(from);
      }
    }
    std::erase_if(missing, [&](std::size_t block) { return seen[block - earliest]; });
    return missing;
  }

  struct Nothing {};

  const Atoms mode_, other_;
  Graph<Nothing, Nothing> joint_;
  std::vector<std::vector<NodeId>> groups_;
  std::vector<std::size_t> block_of_;              ///< by node
  std::vector<std::vector<std::size_t>> members_;  ///< [block] atoms of the partitioned mode
  std::vector<std::vector<std::size_t>> before_;   ///< [block] ascending
};

}  // namespace

std::vector<std::vector<OpId>> ties_to_other_mode(const ModeOfModel& mode, const ModeOfModel& other) {
  return JointModes(mode, other).ties();
}

}  // namespace autopar::cost
