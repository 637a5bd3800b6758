#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include <autopar/core/units.hpp>

namespace autopar {

/// How large the pieces are in which gradients are summed and, under ZeRO, parameters are gathered: large enough for
/// the links, small enough to overlap. A value of the plan: who predicts and who runs it cut alike.
struct BucketPolicy {
  static constexpr Bytes kLeast{32 << 20};                 ///< what a planner chooses at least, and on slow links
  static constexpr Bytes kMost{256 << 20};                 ///< and at most
  static constexpr Bytes kLargest{std::int64_t{1} << 40};  ///< that a plan may state

  Bytes size = kLeast;  ///< of a bucket at most, unless it is one tensor

  /// Of a unit that is in shards. From ZeRO level 2 on several are whole at a time, so the smallest are no larger than
  /// what the operator reads that reads most; larger ones are for links that need them.
  /// @param zero  the plan's level
  [[nodiscard]] constexpr Bytes unit_size(int zero, Bytes largest_read) const {
    return zero < 2 || size > kLeast ? size : std::min(size, std::max(largest_read, Bytes(1)));
  }
  [[nodiscard]] constexpr bool is_valid() const { return size > Bytes(0) && size <= kLargest; }
  friend bool operator==(const BucketPolicy&, const BucketPolicy&) = default;
};

/// A tensor as far as it matters for how tensors are cut into buckets.
struct BucketItem {
  std::int64_t room = 0;  ///< in elements, up to where the next tensor may start
  std::int64_t element_bytes = 1;
  int kind = 0;  ///< a bucket holds items of one kind, and so of one element type

  /// Tensors start where vector loads like it.
  static constexpr std::int64_t kAlignedElements = 16;
  [[nodiscard]] static constexpr std::int64_t aligned(std::int64_t elements) {
    return (elements + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
  }
  [[nodiscard]] static constexpr BucketItem of(std::int64_t elements, std::int64_t element_bytes, int kind) {
    return {aligned(elements), element_bytes, kind};
  }
  [[nodiscard]] constexpr std::int64_t bytes() const { return room * element_bytes; }
};

/// Where tensors lie in buckets.
struct BucketCut {
  struct Place {
    int bucket = 0;
    std::int64_t offset = 0;  ///< in elements
  };
  struct Bucket {
    std::int64_t elements = 0, element_bytes = 1;
    int kind = 0;

    [[nodiscard]] Bytes bytes() const { return Bytes(elements * element_bytes); }
    /// Of which each of so many ranks has an equal, aligned part.
    [[nodiscard]] std::int64_t elements_in_shards(std::int64_t ranks) const {
      return BucketItem::aligned((elements + ranks - 1) / ranks) * ranks;
    }
  };
  std::vector<Place> places;    ///< by item
  std::vector<Bucket> buckets;  ///< in the order of their first items
};

/// Cuts tensors into buckets of at most `size` bytes, or of one tensor: in the order given, one behind the other. One
/// bucket of each kind is open at a time. What does not fit in closes all of them: if others stayed open, what is in
/// them would wait for tensors that come much later. The same items give the same cut everywhere.
/// @cost O(items log kinds)
[[nodiscard]] inline BucketCut cut_into_buckets(std::span<const BucketItem> items, Bytes size) {
  BucketCut cut;
  std::map<int, std::size_t> open;  // by kind
  for (const BucketItem& item : items) {
    if (const auto found = open.find(item.kind); found != open.end()) {
      const std::int64_t used = cut.buckets[found->second].bytes().value();
      if (used > 0 && used + item.bytes() > size.value()) open.clear();
    }
    const auto [own, is_new] = open.try_emplace(item.kind, cut.buckets.size());
    if (is_new) cut.buckets.push_back({0, item.element_bytes, item.kind});
    auto& bucket = cut.buckets[own->second];
    cut.places.push_back({static_cast<int>(own->second), bucket.elements});
    bucket.elements += item.room;
  }
  return cut;
}

}  // namespace autopar
