#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include <autopar/core/units.hpp>
#include <autopar/plan/choices.hpp>

namespace autopar {

/// The size of the buckets in which gradients are reduced and, under ZeRO, parameters are gathered: large enough for
/// the links, small enough to overlap. And the element type in which gradients are sent. It is part of the plan, so
/// prediction and runtime cut tensors alike.
struct BucketPolicy {
  static constexpr Bytes kLeast{32 << 20};                 ///< least that a planner chooses, also on slow links
  static constexpr Bytes kMost{256 << 20};                 ///< most that a planner chooses
  static constexpr Bytes kLargest{std::int64_t{1} << 40};  ///< most that a plan may state

  Bytes size = kLeast;  ///< most bytes of a bucket, unless it is one tensor
  ReduceDtype reduce_dtype = ReduceDtype::kFp32;

  /// The largest unit of what is sharded. From ZeRO 2 on several units are unsharded at a time. So units of small
  /// buckets hold no more than what the operator with the most parameters reads. Larger buckets are for links that need
  /// them.
  /// @param zero  the plan's level
  /// @param largest_read  bytes of the trainable parameters of that operator
  [[nodiscard]] constexpr Bytes unit_size(int zero, Bytes largest_read) const {
    return zero < 2 || size > kLeast ? size : std::min(size, std::max(largest_read, Bytes(1)));
  }
  /// Whether gradients of so many bytes are rounded when they are sent: fp32 alone. Trained parameters of four bytes an
  /// element are fp32.
  [[nodiscard]] constexpr bool rounds(Bytes gradients, std::int64_t elements) const {
    return reduce_dtype == ReduceDtype::kBf16 && elements > 0 && gradients.value() == 4 * elements;
  }
  /// Bytes that stand for gradients of so many bytes when they are sent.
  [[nodiscard]] constexpr Bytes sent(Bytes gradients, std::int64_t elements) const {
    return rounds(gradients, elements) ? Bytes(gradients.value() / 2) : gradients;
  }
  /// Likewise, whatever their element types: at least so many.
  [[nodiscard]] constexpr Bytes least_sent(Bytes gradients) const {
    return reduce_dtype == ReduceDtype::kBf16 ? Bytes(gradients.value() / 2) : gradients;
  }
  [[nodiscard]] constexpr bool is_valid() const { return size > Bytes(0) && size <= kLargest; }
  friend bool operator==(const BucketPolicy&, const BucketPolicy&) = default;
};

/// What decides how a tensor is cut into buckets.
struct BucketItem {
  std::int64_t room = 0;  ///< elements up to where the next tensor may start
  std::int64_t element_bytes = 1;
  int kind = 0;  ///< a bucket holds items of one kind, and so of one element type

  /// Tensors start at multiples of this, for vector loads.
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
    /// Elements when each of `ranks` ranks has an equal, aligned shard.
    [[nodiscard]] std::int64_t elements_in_shards(std::int64_t ranks) const {
      return BucketItem::aligned((elements + ranks - 1) / ranks) * ranks;
    }
  };
  std::vector<Place> places;    ///< by item
  std::vector<Bucket> buckets;  ///< in the order of their first items
};

/// Cuts tensors, in the order given, into buckets of at most `size` bytes or of one tensor. One bucket of each kind is
/// open at a time. A tensor that does not fit closes all open buckets. If others stayed open, their tensors would wait
/// for tensors that come much later. The same items give the same cut everywhere.
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
