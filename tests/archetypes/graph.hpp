#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <ranges>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/graph/concepts.hpp>

/// Models of the graph concepts that offer what the concept asks for and nothing more, and near misses. An algorithm
/// that compiles and works on an archetype uses no more than its concept grants.
namespace autopar::archetypes {

/// A forward range of edges: no size, no random access, not a view, reached through iterators alone.
class ForwardEdges {
 public:
  class Iterator {
   public:
    using value_type = EdgeId;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    explicit Iterator(const EdgeId* at) : at_(at) {}
    EdgeId operator*() const { return *at_; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return Iterator(at_++); }
    friend bool operator==(Iterator, Iterator) = default;

   private:
    const EdgeId* at_ = nullptr;
  };

  explicit ForwardEdges(std::vector<EdgeId> edges) : edges_(std::move(edges)) {}
  [[nodiscard]] Iterator begin() const { return Iterator(edges_.data()); }
  [[nodiscard]] Iterator end() const { return Iterator(edges_.data() + edges_.size()); }

 private:
  std::vector<EdgeId> edges_;
};

using Ends = std::pair<int, int>;  ///< source and target of an edge

/// DirectedGraph and nothing more: out-edges are made for each call, by value.
class Directed {
 public:
  Directed(std::size_t nodes, std::vector<Ends> edges) : nodes_(nodes), edges_(std::move(edges)) {}
  Directed(const Directed&) = delete;
  Directed& operator=(const Directed&) = delete;

  [[nodiscard]] std::size_t node_count() const { return nodes_; }
  [[nodiscard]] std::size_t edge_count() const { return edges_.size(); }
  [[nodiscard]] ForwardEdges out_edges(NodeId node) const {
    return select([&](const Ends& ends) { return ends.first == node.value(); });
  }
  [[nodiscard]] NodeId target(EdgeId edge) const { return NodeId(edges_[edge.index()].second); }

 protected:
  template <class Predicate>
  [[nodiscard]] ForwardEdges select(const Predicate& predicate) const {
    std::vector<EdgeId> found;
    for (std::size_t i = 0; i < edges_.size(); ++i) {
      if (predicate(edges_[i])) found.push_back(EdgeId::of(i));
    }
    return ForwardEdges(std::move(found));
  }

  std::size_t nodes_;
  std::vector<Ends> edges_;
};

/// BidirectionalGraph and nothing more.
class Bidirectional : public Directed {
 public:
  using Directed::Directed;
  [[nodiscard]] ForwardEdges in_edges(NodeId node) const {
    return select([&](const Ends& ends) { return ends.second == node.value(); });
  }
  [[nodiscard]] NodeId source(EdgeId edge) const { return NodeId(edges_[edge.index()].first); }
};

/// A cost that adds up and compares, and nothing more: no number, no assignment operators but its own.
class Cost {
 public:
  Cost() = default;
  explicit Cost(int amount) : amount_(amount) {}
  friend Cost operator+(Cost a, Cost b) { return Cost(a.amount_ + b.amount_); }
  friend auto operator<=>(Cost, Cost) = default;

 private:
  int amount_ = 0;
};

static_assert(DirectedGraph<Directed> && !BidirectionalGraph<Directed>);
static_assert(BidirectionalGraph<Bidirectional>);

/// Near misses: each is a Bidirectional graph with one thing wrong.
namespace near_miss {

struct PlainIntegerIds : Bidirectional {
  std::vector<int> out_edges(NodeId) const;
};
struct SinglePassEdges : Bidirectional {
  struct Iterator {
    using value_type = EdgeId;
    using difference_type = std::ptrdiff_t;
    EdgeId operator*() const;
    Iterator& operator++();
    void operator++(int);
    friend bool operator==(const Iterator&, std::default_sentinel_t);
  };
  static_assert(std::input_iterator<Iterator>);
  std::ranges::subrange<Iterator, std::default_sentinel_t> in_edges(NodeId) const;
};
struct NoTarget : Bidirectional {
  void target(EdgeId) const;
};
struct TargetIsAnEdge : Bidirectional {
  EdgeId target(EdgeId) const;
};
struct MutatingCount : Bidirectional {
  std::size_t node_count();
};
struct SignedCount : Bidirectional {
  int edge_count() const;
};

static_assert(!DirectedGraph<PlainIntegerIds>);
static_assert(!DirectedGraph<NoTarget>);
static_assert(!DirectedGraph<TargetIsAnEdge>);
static_assert(!DirectedGraph<MutatingCount>);
static_assert(!DirectedGraph<SignedCount>);
static_assert(DirectedGraph<SinglePassEdges> && !BidirectionalGraph<SinglePassEdges>);
static_assert(!DirectedGraph<int> && !DirectedGraph<std::vector<std::vector<int>>>);

}  // namespace near_miss
}  // namespace autopar::archetypes
