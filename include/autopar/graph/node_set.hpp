#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>

namespace autopar {

/// @brief A set of nodes of one graph, one bit for each node.
///
/// It is a range of its members, ascending. Set operations require equal universes.
///
/// @cost universe / 8 bytes; membership O(1), set operations O(universe / 64), iteration O(universe / 64 + members)
class NodeSet {
 public:
  class Iterator;

  NodeSet() = default;
  /// @brief The empty set of a graph with `universe` nodes.
  explicit NodeSet(std::size_t universe) : universe_(universe), words_((universe + kBits - 1) / kBits) {}
  /// @throws InvalidArgument if a member is not below `universe`
  NodeSet(std::size_t universe, std::initializer_list<NodeId> members) : NodeSet(universe) {
    for (const NodeId member : members) insert(member);
  }

  /// @brief All nodes of a graph with `universe` nodes.
  [[nodiscard]] static NodeSet all(std::size_t universe) {
    NodeSet set(universe);
    for (auto& word : set.words_) word = ~Word{0};
    if (const std::size_t used = universe % kBits; used != 0) set.words_.back() = (Word{1} << used) - 1;
    return set;
  }

  /// @brief Node count of the graph that the set belongs to.
  [[nodiscard]] std::size_t universe() const noexcept { return universe_; }
  /// @brief Number of members. O(universe / 64).
  [[nodiscard]] std::size_t size() const noexcept {
    std::size_t count = 0;
    for (const Word word : words_) count += static_cast<std::size_t>(std::popcount(word));
    return count;
  }
  [[nodiscard]] bool empty() const noexcept {
    for (const Word word : words_) {
      if (word != 0) return false;
    }
    return true;
  }
  /// @brief Whether `node` is a member; nodes outside the universe are not.
  [[nodiscard]] bool contains(NodeId node) const noexcept {
    return node.index() < universe_ && ((words_[node.index() / kBits] >> (node.index() % kBits)) & 1) != 0;
  }

  /// Adds a node.
  /// @return whether `node` is new
  /// @throws InvalidArgument if `node` is not below the universe
  bool insert(NodeId node) {
    require_member(node);
    Word& word = words_[node.index() / kBits];
    const Word bit = Word{1} << (node.index() % kBits);
    const bool is_new = (word & bit) == 0;
    word |= bit;
    return is_new;
  }
  /// Removes a node.
  /// @return whether `node` was a member
  bool erase(NodeId node) noexcept {
    if (!contains(node)) return false;
    words_[node.index() / kBits] &= ~(Word{1} << (node.index() % kBits));
    return true;
  }
  void clear() noexcept {
    for (auto& word : words_) word = 0;
  }

  /// @throws InvalidArgument if the universes differ (all set operations)
  NodeSet& operator|=(const NodeSet& other) {
    return combine(other, [](Word a, Word b) { return a | b; });
  }
  NodeSet& operator&=(const NodeSet& other) {
    return combine(other, [](Word a, Word b) { return a & b; });
  }
  NodeSet& operator-=(const NodeSet& other) {
    return combine(other, [](Word a, Word b) { return a & ~b; });
  }
  [[nodiscard]] friend NodeSet operator|(NodeSet a, const NodeSet& b) { return a |= b; }
  [[nodiscard]] friend NodeSet operator&(NodeSet a, const NodeSet& b) { return a &= b; }
  [[nodiscard]] friend NodeSet operator-(NodeSet a, const NodeSet& b) { return a -= b; }

  [[nodiscard]] bool is_subset_of(const NodeSet& other) const {
    require_same_universe(other);
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if ((words_[i] & ~other.words_[i]) != 0) return false;
    }
    return true;
  }
  [[nodiscard]] bool intersects(const NodeSet& other) const {
    require_same_universe(other);
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if ((words_[i] & other.words_[i]) != 0) return true;
    }
    return false;
  }

  [[nodiscard]] std::size_t hash() const noexcept {
    std::uint64_t state = universe_;
    for (const Word word : words_) state = (state ^ word) * 0x9e3779b97f4a7c15u + (state >> 29);
    return static_cast<std::size_t>(state);
  }
  friend bool operator==(const NodeSet&, const NodeSet&) = default;

  [[nodiscard]] Iterator begin() const noexcept;
  [[nodiscard]] Iterator end() const noexcept;

 private:
  using Word = std::uint64_t;
  static constexpr std::size_t kBits = 64;

  void require_member(NodeId node) const {
    if (node.index() >= universe_) {
      throw InvalidArgument("NodeSet: node " + std::to_string(node.value()) + " is not one of the " +
                            std::to_string(universe_) + " nodes of its graph");
    }
  }
  void require_same_universe(const NodeSet& other) const {
    if (universe_ != other.universe_) {
      throw InvalidArgument("NodeSet: sets over " + std::to_string(universe_) + " and over " +
                            std::to_string(other.universe_) + " nodes belong to different graphs");
    }
  }
  template <class Combine>
  NodeSet& combine(const NodeSet& other, Combine combine_words) {
    require_same_universe(other);
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] = combine_words(words_[i], other.words_[i]);
    return *this;
  }

  std::size_t universe_ = 0;
  std::vector<Word> words_;
};

/// @brief Members of a NodeSet, ascending. Invalidated by any change of the set.
class NodeSet::Iterator {
 public:
  using value_type = NodeId;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::forward_iterator_tag;
  using iterator_category = std::input_iterator_tag;

  Iterator() = default;

  [[nodiscard]] NodeId operator*() const {
    return NodeId::of(word_ * kBits + static_cast<std::size_t>(std::countr_zero(rest_)));
  }
  Iterator& operator++() {
    rest_ &= rest_ - 1;
    skip_empty_words();
    return *this;
  }
  Iterator operator++(int) {
    Iterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const Iterator& a, const Iterator& b) { return a.word_ == b.word_ && a.rest_ == b.rest_; }

 private:
  friend class NodeSet;
  Iterator(const std::vector<Word>& words, std::size_t word) : words_(&words), word_(word) {
    if (word_ < words_->size()) {
      rest_ = (*words_)[word_];
      skip_empty_words();
    }
  }
  void skip_empty_words() {
    while (rest_ == 0 && ++word_ < words_->size()) rest_ = (*words_)[word_];
  }

  const std::vector<Word>* words_ = nullptr;
  std::size_t word_ = 0;
  Word rest_ = 0;
};

inline NodeSet::Iterator NodeSet::begin() const noexcept { return {words_, 0}; }
inline NodeSet::Iterator NodeSet::end() const noexcept { return {words_, words_.size()}; }

static_assert(std::forward_iterator<NodeSet::Iterator>);

}  // namespace autopar

template <>
struct std::hash<autopar::NodeSet> {
  std::size_t operator()(const autopar::NodeSet& set) const noexcept { return set.hash(); }
};
