#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/detail/downset_walk.hpp>
#include <autopar/graph/node_set.hpp>

namespace autopar {

using DownsetId = Index<struct DownsetTag>;  ///< downset of a DownsetLattice

/// @brief The largest number of downsets in a lattice.
inline constexpr std::size_t kMaxDownsets = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());

/// @brief All downsets of an acyclic graph. A downset is a set of nodes that contains all predecessors of its members.
///
/// At any time the nodes that have run form a downset. A set of nodes is convex exactly if it is the difference of two
/// nested downsets. A chain of downsets from the empty one to all nodes is therefore a pipeline, and every pipeline is
/// such a chain.
///
/// @invariant ids ascend with inclusion: a proper subset has a smaller id; the empty set is first, all nodes are last
/// @cost 24 bytes for each downset and 8 for each cover; a downset of a graph has at most log2(size()) covers
class DownsetLattice {
 public:
  /// @brief A downset with one additional node.
  struct Cover {
    NodeId added;
    DownsetId result;
    friend bool operator==(const Cover&, const Cover&) = default;
  };

  [[nodiscard]] std::size_t size() const noexcept { return downsets_.size(); }
  /// @brief Node count of the graph.
  [[nodiscard]] std::size_t node_count() const noexcept { return order_.size(); }
  [[nodiscard]] DownsetId empty_set() const noexcept { return DownsetId(0); }
  [[nodiscard]] DownsetId all_nodes() const noexcept { return DownsetId::of(downsets_.size() - 1); }

  /// @brief Number of members. O(1).
  [[nodiscard]] std::size_t cardinality(DownsetId id) const { return downsets_[id.index()].cardinality; }
  /// @brief The members. O(node_count() / 64 + cardinality).
  [[nodiscard]] NodeSet members(DownsetId id) const {
    NodeSet set(order_.size());
    for (; id != empty_set(); id = downsets_[id.index()].parent) set.insert(downsets_[id.index()].added);
    return set;
  }
  /// @brief The downsets with one additional node, in topological order of that node. O(1).
  [[nodiscard]] std::span<const Cover> covers(DownsetId id) const {
    const std::size_t begin = downsets_[id.index()].first_cover;
    const std::size_t end = id == all_nodes() ? covers_.size() : downsets_[id.index() + 1].first_cover;
    return std::span(covers_).subspan(begin, end - begin);
  }
  /// @brief The downset with exactly these members, or nullopt if the set is not a downset. O(node_count() + members).
  [[nodiscard]] std::optional<DownsetId> find(const NodeSet& set) const;

  /// @brief Visits each proper superset of a downset once; the difference grows and shrinks node by node.
  ///
  /// `enter(node, id)` is called when `node` joins the difference: `id` without `from` is then the difference. If it
  /// returns false, the supersets that add only later nodes (in topological order) to `id` are skipped. Use this for a
  /// criterion that fails for all supersets once it fails, such as memory. `leave(node)` is called when the node is
  /// removed.
  ///
  /// @cost O(log2(size())) for each visit, without recursion; there is one visit for each convex set that begins at
  /// `from`
  template <class Enter, class Leave>
  void for_each_superset(DownsetId from, Enter&& enter, Leave&& leave) const;

 private:
  struct Downset {
    DownsetId parent;  ///< without its last member in topological order
    NodeId added;      ///< its last member in topological order
    std::uint32_t cardinality;
    std::size_t first_cover;
  };

  explicit DownsetLattice(const std::vector<NodeId>& order) : order_(order), position_(order.size()) {
    for (std::size_t i = 0; i < order.size(); ++i) position_[order[i].index()] = i;
  }
  void resolve_covers();
  [[nodiscard]] const Cover* find_cover(DownsetId id, NodeId added) const {
    const auto row = covers(id);
    const auto found =
        std::lower_bound(row.begin(), row.end(), position_[added.index()],
                         [this](const Cover& c, std::size_t p) { return position_[c.added.index()] < p; });
    return found != row.end() && found->added == added ? &*found : nullptr;
  }

  template <DirectedGraph G>
  friend std::optional<DownsetLattice> enumerate_downsets(const G& graph, std::size_t limit);

  std::vector<NodeId> order_;
  std::vector<std::size_t> position_;
  std::vector<Downset> downsets_;
  std::vector<Cover> covers_;
};

/// @brief All downsets of a graph, or nullopt if there are more than `limit`.
/// @param limit  at most kMaxDownsets
/// @throws InvalidArgument if the graph has a cycle or `limit` is too large
/// @cost O(downsets * (log(limit) * log(log(limit)) + out-degree)) after O(edges + nodes log nodes); at most `limit`
/// downsets are counted if there are more
/// @source after Steiner, An algorithm to generate the ideals of a partial order, Oper. Res. Lett. 5(6), 1986
template <DirectedGraph G>
[[nodiscard]] std::optional<DownsetLattice> enumerate_downsets(const G& graph, std::size_t limit) {
  if (limit > kMaxDownsets) {
    throw InvalidArgument("enumerate_downsets: the limit " + std::to_string(limit) +
                          " is above kMaxDownsets = " + std::to_string(kMaxDownsets));
  }
  detail::DownsetWalk walk(graph);
  DownsetLattice lattice(walk.order());
  const auto& order = walk.order();
  const bool complete =
      walk.run(limit, [&](std::size_t parent, std::size_t added, std::span<const std::size_t> available) {
        auto& downsets = lattice.downsets_;
        auto& covers = lattice.covers_;
        const bool is_empty_set = downsets.empty();
        const auto id = DownsetId::of(downsets.size());
        downsets.push_back({DownsetId::of(parent), is_empty_set ? NodeId::none() : order[added],
                            is_empty_set ? 0 : downsets[parent].cardinality + 1, covers.size()});
        for (const std::size_t position : available) covers.push_back({order[position], DownsetId::none()});
        if (!is_empty_set) {
          const auto row = std::span(covers).subspan(downsets[parent].first_cover);
          const auto child = [&](const auto& cover) { return cover.added == order[added]; };
          std::find_if(row.begin(), row.end(), child)->result = id;
        }
      });
  if (!complete) return std::nullopt;
  lattice.resolve_covers();
  return lattice;
}

/// @brief The number of downsets, or nullopt if there are more than `limit`.
/// @throws InvalidArgument if the graph has a cycle
/// @cost time as `enumerate_downsets`; memory O(nodes * log(limit) + edges)
template <DirectedGraph G>
[[nodiscard]] std::optional<std::size_t> count_downsets(const G& graph, std::size_t limit) {
  std::size_t count = 0;
  const bool complete =
      detail::DownsetWalk(graph).run(limit, [&](std::size_t, std::size_t, std::span<const std::size_t>) { ++count; });
  return complete ? std::optional(count) : std::nullopt;
}

/// Fills in the covers that are not children: parent + added + node is a child of parent + node.
inline void DownsetLattice::resolve_covers() {
  for (std::size_t i = 1; i < downsets_.size(); ++i) {
    const Downset& downset = downsets_[i];
    const auto row = std::span(covers_).subspan(downset.first_cover, covers(DownsetId::of(i)).size());
    // Nodes before `added` were available to the parent, too, at the same positions.
    const auto parent_row = covers(downset.parent);
    for (std::size_t k = 0; k < row.size() && position_[row[k].added.index()] < position_[downset.added.index()]; ++k) {
      row[k].result = find_cover(parent_row[k].result, downset.added)->result;
    }
  }
}

inline std::optional<DownsetId> DownsetLattice::find(const NodeSet& set) const {
  if (set.universe() != order_.size()) return std::nullopt;
  DownsetId id = empty_set();
  for (const NodeId node : order_) {
    if (!set.contains(node)) continue;
    const Cover* cover = find_cover(id, node);
    if (cover == nullptr) return std::nullopt;
    id = cover->result;
  }
  return id;
}

template <class Enter, class Leave>
void DownsetLattice::for_each_superset(DownsetId from, Enter&& enter, Leave&& leave) const {
  struct Frame {
    std::span<const Cover> covers;
    NodeId added;
  };
  const auto later_covers = [this](DownsetId id, NodeId added) {
    auto row = covers(id);
    while (!row.empty() && position_[row.front().added.index()] < position_[added.index()]) row = row.subspan(1);
    return row;
  };
  std::vector<Frame> frames{{covers(from), NodeId::none()}};
  while (!frames.empty()) {
    if (frames.back().covers.empty()) {
      if (frames.back().added.valid()) leave(frames.back().added);
      frames.pop_back();
      continue;
    }
    const Cover cover = frames.back().covers.front();
    frames.back().covers = frames.back().covers.subspan(1);
    if (enter(cover.added, cover.result)) {
      frames.push_back({later_covers(cover.result, cover.added), cover.added});
    } else {
      leave(cover.added);
    }
  }
}

}  // namespace autopar
