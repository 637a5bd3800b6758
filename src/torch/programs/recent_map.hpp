#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include <autopar/core/assert.hpp>

namespace autopar::programs {

/// A map of at most `capacity` entries: beyond, the one goes whose last use is longest ago. What goes follows from the
/// order of uses alone, so ranks that use equal keys in one order keep equal entries. References hold until their entry
/// goes. An addition to a full map is linear in `capacity`, all else as in std::map.
template <class Key, class Value>
class RecentMap {
 public:
  /// @pre capacity > 0
  explicit RecentMap(std::size_t capacity) : capacity_(capacity) {
    AUTOPAR_ASSERT(capacity > 0, "a map without room for an entry");
  }

  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] bool is_full() const { return size() == capacity_; }

  /// Null if there is none. Is a use.
  [[nodiscard]] Value* find(const Key& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    found->second.last_use = ++uses_;
    return &found->second.value;
  }

  /// Null if there is none. Is no use.
  [[nodiscard]] const Value* peek(const Key& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : &found->second.value;
  }

  /// Adds the entry, or replaces its value. Is a use.
  Value& put(const Key& key, Value value) {
    if (is_full() && !entries_.contains(key)) {
      entries_.erase(std::ranges::min_element(entries_, {}, [](const auto& entry) { return entry.second.last_use; }));
    }
    return entries_.insert_or_assign(key, Entry{std::move(value), ++uses_}).first->second.value;
  }

  void clear() { entries_.clear(); }

 private:
  struct Entry {
    Value value;
    std::uint64_t last_use;
  };

  std::size_t capacity_;
  std::uint64_t uses_ = 0;
  std::map<Key, Entry> entries_;
};

}  // namespace autopar::programs
