#pragma once
#include <compare>
#include <cstddef>
#include <iterator>
#include <ranges>
#include <type_traits>
#include <utility>

#include <autopar/core/ids.hpp>
#include <autopar/graph/concepts.hpp>

// Own iterators instead of std::views: clang 14 and clang-tidy-14 do not compile the views of libstdc++ 12.

namespace autopar {

/// @brief The ids 0 … size() - 1 as a random-access range; nothing is stored.
template <class Id>
class IdRange : public std::ranges::view_base {
 public:
  /// @brief Random-access. It computes the ids, so it may outlive its range.
  class Iterator {
   public:
    using value_type = Id;
    using difference_type = std::ptrdiff_t;

    constexpr Iterator() = default;
    constexpr explicit Iterator(std::ptrdiff_t position) : position_(position) {}

    [[nodiscard]] constexpr Id operator*() const { return Id::of(static_cast<std::size_t>(position_)); }
    [[nodiscard]] constexpr Id operator[](std::ptrdiff_t distance) const { return *(*this + distance); }
    constexpr Iterator& operator+=(std::ptrdiff_t distance) {
      position_ += distance;
      return *this;
    }
    constexpr Iterator& operator-=(std::ptrdiff_t distance) { return *this += -distance; }
    constexpr Iterator& operator++() { return *this += 1; }
    constexpr Iterator& operator--() { return *this -= 1; }
    constexpr Iterator operator++(int) { return std::exchange(*this, *this + 1); }
    constexpr Iterator operator--(int) { return std::exchange(*this, *this - 1); }

    [[nodiscard]] friend constexpr Iterator operator+(Iterator it, std::ptrdiff_t distance) { return it += distance; }
    [[nodiscard]] friend constexpr Iterator operator+(std::ptrdiff_t distance, Iterator it) { return it += distance; }
    [[nodiscard]] friend constexpr Iterator operator-(Iterator it, std::ptrdiff_t distance) { return it -= distance; }
    [[nodiscard]] friend constexpr std::ptrdiff_t operator-(Iterator a, Iterator b) {
      return a.position_ - b.position_;
    }
    friend constexpr auto operator<=>(Iterator, Iterator) = default;

   private:
    std::ptrdiff_t position_ = 0;
  };

  constexpr explicit IdRange(std::size_t size) : size_(size) {}

  [[nodiscard]] constexpr Iterator begin() const { return Iterator(); }
  [[nodiscard]] constexpr Iterator end() const { return Iterator(static_cast<std::ptrdiff_t>(size_)); }
  [[nodiscard]] constexpr std::size_t size() const { return size_; }
  [[nodiscard]] constexpr bool empty() const { return size_ == 0; }

 private:
  std::size_t size_;
};

namespace detail {

enum class EdgeEnd { kSource, kTarget };

/// @brief The node at one end of each of `edges`, in their order, read from the graph while iterating.
template <class G, class Edges, EdgeEnd End>
class EdgeEnds {
  using Base = std::ranges::iterator_t<const std::remove_reference_t<Edges>>;

 public:
  class Iterator {
   public:
    using value_type = NodeId;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    Iterator(const G& graph, Base edge) : graph_(&graph), edge_(std::move(edge)) {}

    [[nodiscard]] NodeId operator*() const {
      if constexpr (End == EdgeEnd::kSource) {
        return graph_->source(*edge_);
      } else {
        return graph_->target(*edge_);
      }
    }
    Iterator& operator++() {
      ++edge_;
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++edge_;
      return before;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.edge_ == b.edge_; }

   private:
    const G* graph_ = nullptr;
    Base edge_{};
  };

  EdgeEnds(const G& graph, Edges edges) : graph_(&graph), edges_(std::forward<Edges>(edges)) {}

  [[nodiscard]] Iterator begin() const { return Iterator(*graph_, std::ranges::begin(edges_)); }
  [[nodiscard]] Iterator end() const { return Iterator(*graph_, std::ranges::end(edges_)); }
  [[nodiscard]] bool empty() const { return begin() == end(); }

 private:
  const G* graph_;
  Edges edges_;
};

}  // namespace detail

/// @brief The ids 0 … count - 1 as a random-access range; nothing is stored.
template <class Id>
[[nodiscard]] constexpr IdRange<Id> id_range(std::size_t count) {
  return IdRange<Id>(count);
}

/// @brief All node ids of a graph, ascending.
template <DirectedGraph G>
[[nodiscard]] auto nodes_of(const G& graph) {
  return id_range<NodeId>(graph.node_count());
}

/// @brief All edge ids of a graph, ascending.
template <DirectedGraph G>
[[nodiscard]] auto edges_of(const G& graph) {
  return id_range<EdgeId>(graph.edge_count());
}

/// @brief Targets of the edges that leave `node`; parallel edges repeat a node.
template <DirectedGraph G>
[[nodiscard]] auto successors_of(const G& graph, NodeId node) {
  return detail::EdgeEnds<G, decltype(graph.out_edges(node)), detail::EdgeEnd::kTarget>(graph, graph.out_edges(node));
}

/// @brief Sources of the edges that enter `node`; parallel edges repeat a node.
template <BidirectionalGraph G>
[[nodiscard]] auto predecessors_of(const G& graph, NodeId node) {
  return detail::EdgeEnds<G, decltype(graph.in_edges(node)), detail::EdgeEnd::kSource>(graph, graph.in_edges(node));
}

}  // namespace autopar
