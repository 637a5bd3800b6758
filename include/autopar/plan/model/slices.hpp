#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <autopar/plan/request.hpp>
#include <autopar/schedule/batch_split.hpp>

namespace autopar {

/// How many samples the replicas of a stage run at a time: the results of BatchSplit in summary.
struct SliceSizes {
  std::int64_t smallest = 0;  ///< of the slices that are not empty
  std::int64_t largest = 0;
  bool regular = true;                                 ///< no replica has an empty slice of any micro-batch
  std::vector<std::pair<std::int64_t, int>> heaviest;  ///< (samples, times) of the replica with the most samples

  /// The number of micro-batches that this replica computes.
  [[nodiscard]] int busy_times() const {
    int times = 0;
    for (const auto& [samples, often] : heaviest) times += often;
    return times;
  }
};

/// The micro-batches of a layout by size, and the pieces of its ranks by class: equal ones are counted, not listed.
class PieceClasses {
 public:
  PieceClasses(const std::vector<std::int64_t>& local, int microbatches) : microbatches_(microbatches) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> known;  // all that piece_begin knows of a rank
    std::int64_t first = 0;
    for (std::size_t r = 0; r < local.size(); ++r) {
      const auto [entry, added] = known.try_emplace({local[r], first % microbatches}, classes_.size());
      if (added) classes_.push_back({local[r], first % microbatches, 0});
      ++classes_[entry->second].ranks;
      first += local[r];
    }
    for (int m = 0; m < microbatches; ++m) {
      std::int64_t size = 0;
      for (const Class& one : classes_) size += piece(one, m) * one.ranks;
      ++sizes_[size];
    }
  }

  /// (samples, micro-batches of that size)
  [[nodiscard]] const std::map<std::int64_t, int>& sizes() const { return sizes_; }
  [[nodiscard]] std::size_t count() const { return classes_.size(); }
  /// (samples, times) of the pieces of a class: those of its first rank. Classes ascend by first rank.
  [[nodiscard]] std::map<std::int64_t, int> pieces(std::size_t of) const {
    std::map<std::int64_t, int> out;
    for (int m = 0; m < microbatches_; ++m) ++out[piece(classes_[of], m)];
    return out;
  }

 private:
  struct Class {
    std::int64_t samples, first, ranks;
  };
  [[nodiscard]] std::int64_t piece(const Class& one, int m) const {
    return piece_begin(one.samples, one.first, m + 1, microbatches_) -
           piece_begin(one.samples, one.first, m, microbatches_);
  }

  int microbatches_;
  std::vector<Class> classes_;
  std::map<std::int64_t, int> sizes_;
};

/// @param keeps_pieces  one stage on all ranks: each rank runs its own piece
/// @cost O(replicas * different sizes of micro-batches); with equal local batches there are one or two sizes
[[nodiscard]] inline SliceSizes slices_of(const PieceClasses& classes, int replicas, bool keeps_pieces) {
  SliceSizes out;
  std::int64_t most = -1;
  const auto count = [&](std::int64_t slice) {
    if (slice == 0) {
      out.regular = false;
      return;
    }
    out.smallest = out.smallest == 0 ? slice : std::min(out.smallest, slice);
    out.largest = std::max(out.largest, slice);
  };
  if (keeps_pieces) {
    for (std::size_t c = 0; c < classes.count(); ++c) {
      auto pieces = classes.pieces(c);
      std::int64_t total = 0;
      for (const auto& [slice, times] : pieces) {
        count(slice);
        total += slice * times;
      }
      pieces.erase(0);
      if (total <= most) continue;
      most = total;
      out.heaviest.assign(pieces.begin(), pieces.end());
    }
    return out;
  }
  const auto slice = [&](std::int64_t size, std::int64_t q) { return size * (q + 1) / replicas - size * q / replicas; };
  for (const auto& [size, times] : classes.sizes()) {
    count(size / replicas);  // the first replica's, no larger than any
    count((size + replicas - 1) / replicas);
  }
  std::int64_t heaviest = 0;
  for (std::int64_t q = 0; q < replicas; ++q) {
    std::int64_t total = 0;
    for (const auto& [size, times] : classes.sizes()) total += slice(size, q) * times;
    if (total <= most) continue;
    most = total;
    heaviest = q;
  }
  std::map<std::int64_t, int> of_heaviest;
  for (const auto& [size, times] : classes.sizes()) of_heaviest[slice(size, heaviest)] += times;
  of_heaviest.erase(0);
  out.heaviest.assign(of_heaviest.begin(), of_heaviest.end());
  return out;
}

[[nodiscard]] inline SliceSizes slices_of(const std::vector<std::int64_t>& local, int microbatches, int replicas,
                                          bool keeps_pieces) {
  return slices_of(PieceClasses(local, microbatches), replicas, keeps_pieces);
}

/// `slices_of` for one request, with cached results.
class SliceTable {
 public:
  explicit SliceTable(const Constraints& constraints) : local_(constraints.local_batches()) {}

  /// @param stages  stages of the whole plan; 0 = unknown, but more than one
  [[nodiscard]] const SliceSizes& at(int microbatches, int replicas, int stages) const {
    const bool keeps = stages == 1 && replicas == static_cast<int>(local_.size());
    const auto [entry, added] = table_.try_emplace({microbatches, keeps ? -1 : replicas});
    if (added) {
      const auto& classes = classes_.try_emplace(microbatches, local_, microbatches).first->second;
      entry->second = slices_of(classes, replicas, keeps);
    }
    return entry->second;
  }
  [[nodiscard]] const std::vector<std::int64_t>& local() const { return local_; }

 private:
  std::vector<std::int64_t> local_;
  mutable std::map<std::pair<int, int>, SliceSizes> table_;
  mutable std::map<int, PieceClasses> classes_;  // by micro-batches
};

}  // namespace autopar
