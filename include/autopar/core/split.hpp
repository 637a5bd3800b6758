#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>

namespace autopar {

/// How a dim of a tensor is cut into consecutive slices, one for each rank of a group, in the group's order. Lengths
/// may differ and may be 0.
///
///     Split::even(21, 4)   // 6, 5, 5, 5
class Split {
 public:
  /// @throws InvalidArgument if `lengths` is empty or a length is negative
  explicit Split(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {
    const bool good = !lengths_.empty() && std::ranges::all_of(lengths_, [](auto length) { return length >= 0; });
    expect(good, "a split has one length for each rank of its group, 0 or more");
  }

  /// Slices of whole units (such as the elements of an attention head) that differ by at most one unit, the longer
  /// first.
  /// @throws InvalidArgument unless `unit` divides `total`
  [[nodiscard]] static Split even(std::int64_t total, int parts, std::int64_t unit = 1) {
    if (parts < 1 || unit < 1 || total < 0 || total % unit != 0) {
      throw InvalidArgument("cannot cut " + std::to_string(total) + " elements into " + std::to_string(parts) +
                            " slices of whole units of " + std::to_string(unit) + "; choose a unit that divides them");
    }
    const auto units = total / unit;
    std::vector<std::int64_t> lengths;
    for (std::int64_t part = 0; part < parts; ++part) {
      lengths.push_back((units / parts + (part < units % parts ? 1 : 0)) * unit);
    }
    return Split(std::move(lengths));
  }

  /// As `even`, except that slices of many elements have whole packs of kPack, but for the last slice. Products of
  /// other sizes run in kernels that load element by element.
  [[nodiscard]] static Split in_packs(std::int64_t total, int parts) {
    if (total < kMany * parts) return even(total, parts);
    const std::int64_t whole = packs_of(total) * kPack;
    Split split = even(whole, parts, kPack);
    split.lengths_.back() -= whole - total;
    return split;
  }
  /// `in_packs(total, parts).longest()`. @pre parts >= 1
  [[nodiscard]] static constexpr std::int64_t longest_in_packs(std::int64_t total, int parts) {
    const bool is_cut = total >= kMany * parts;
    const std::int64_t pieces = is_cut ? packs_of(total) : total;
    return std::min(total, (pieces + parts - 1) / parts * (is_cut ? kPack : 1));
  }

  [[nodiscard]] int parts() const { return static_cast<int>(lengths_.size()); }
  [[nodiscard]] const std::vector<std::int64_t>& lengths() const { return lengths_; }
  /// \pre 0 <= place < parts()
  [[nodiscard]] std::int64_t length(int place) const { return lengths_[static_cast<std::size_t>(place)]; }
  [[nodiscard]] std::int64_t begin(int place) const {
    return std::accumulate(lengths_.begin(), lengths_.begin() + place, std::int64_t{0});
  }
  [[nodiscard]] std::int64_t total() const { return begin(parts()); }
  [[nodiscard]] std::int64_t longest() const { return *std::ranges::max_element(lengths_); }
  [[nodiscard]] bool is_even() const { return *std::ranges::min_element(lengths_) == longest(); }

  friend bool operator==(const Split&, const Split&) = default;

 private:
  static constexpr std::int64_t kPack = 16;    // elements of 8 bits that a load takes
  static constexpr std::int64_t kMany = 4096;  // of a slice: one pack more is little

  [[nodiscard]] static constexpr std::int64_t packs_of(std::int64_t total) { return (total + kPack - 1) / kPack; }

  std::vector<std::int64_t> lengths_;
};

/// "6+5+5+5"
[[nodiscard]] inline std::string to_string(const Split& split) {
  std::string text;
  for (const auto length : split.lengths()) text += (text.empty() ? "" : "+") + std::to_string(length);
  return text;
}

}  // namespace autopar
