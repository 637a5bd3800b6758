#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <autopar/plan/request.hpp>
#include <autopar/schedule/batch_split.hpp>

namespace autopar {

using PieceSizes = std::vector<std::pair<std::int64_t, int>>;  ///< (samples, times), ascending

/// How many samples the replicas of a stage run at a time: the results of BatchSplit in summary.
struct SliceSizes {
  std::int64_t smallest = 0;  ///< of the slices that are not empty
  std::int64_t largest = 0;
  bool regular = true;  ///< no replica has an empty slice of any micro-batch
  PieceSizes heaviest;  ///< of the replica with the most samples

  /// The number of micro-batches that this replica computes.
  [[nodiscard]] int busy_times() const {
    int times = 0;
    for (const auto& [samples, often] : heaviest) times += often;
    return times;
  }
};

/// The micro-batches of a layout by size, and the pieces of its ranks by class: equal ones are counted, not listed.
struct PieceClasses {
  std::vector<std::int64_t> microbatches;  ///< samples of each, in order
  PieceSizes sizes;                        ///< of the micro-batches
  std::vector<PieceSizes> pieces;          ///< by class, ascending by first rank: of the pieces of that rank

  PieceClasses(const std::vector<std::int64_t>& local, int count) : microbatches(static_cast<std::size_t>(count), 0) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> ranks_of;  // by all that piece_begin knows of a rank
    std::vector<std::pair<std::int64_t, std::int64_t>> classes;              // ascending by first rank
    std::int64_t first = 0;
    for (const std::int64_t samples : local) {
      const std::pair one(samples, first % count);
      if (++ranks_of[one] == 1) classes.push_back(one);
      first += samples;
    }
    for (const auto& one : classes) {
      std::vector<std::int64_t> own;
      for (int m = 0; m < count; ++m) {
        own.push_back(piece_begin(one.first, one.second, m + 1, count) - piece_begin(one.first, one.second, m, count));
        microbatches[static_cast<std::size_t>(m)] += own.back() * ranks_of[one];
      }
      pieces.push_back(counted(std::move(own)));
    }
    sizes = counted(microbatches);
  }

 private:
  [[nodiscard]] static PieceSizes counted(std::vector<std::int64_t> samples) {
    std::sort(samples.begin(), samples.end());
    PieceSizes out;
    for (const std::int64_t n : samples) {
      if (out.empty() || out.back().first != n) out.emplace_back(n, 0);
      ++out.back().second;
    }
    return out;
  }
};

/// @param keeps_pieces  one stage on all ranks: each rank runs its own piece
/// @cost O(replicas * different sizes of micro-batches); with equal local batches there are one or two sizes
[[nodiscard]] inline SliceSizes slices_of(const PieceClasses& classes, int replicas, bool keeps_pieces) {
  SliceSizes out;
  std::int64_t most = -1;
  const auto add_replica = [&](const PieceSizes& slices) {
    std::int64_t total = 0;
    for (const auto& [slice, times] : slices) {
      total += slice * times;
      out.largest = std::max(out.largest, slice);
      out.regular = out.regular && slice > 0;
      if (slice > 0) out.smallest = out.smallest == 0 ? slice : std::min(out.smallest, slice);
    }
    if (total <= most) return;
    most = total;
    out.heaviest = slices;
  };
  if (keeps_pieces) {
    for (const PieceSizes& pieces : classes.pieces) add_replica(pieces);
  } else {
    PieceSizes slices(classes.sizes.size());
    std::vector<std::int64_t> ends(slices.size(), 0);  // of the slices, by size of the micro-batch
    for (std::int64_t q = 0; q < replicas; ++q) {
      for (std::size_t i = 0; i < slices.size(); ++i) {
        const auto& [size, times] = classes.sizes[i];
        const std::int64_t end = size * (q + 1) / replicas;
        slices[i] = {end - std::exchange(ends[i], end), times};
      }
      add_replica(slices);
    }
  }
  std::map<std::int64_t, int> of_heaviest;  // micro-batches of other sizes may have slices of one size
  for (const auto& [slice, times] : out.heaviest) of_heaviest[slice] += times;
  of_heaviest.erase(0);
  out.heaviest.assign(of_heaviest.begin(), of_heaviest.end());
  return out;
}

/// `slices_of` for one request, with cached results.
class SliceTable {
 public:
  explicit SliceTable(const Constraints& constraints) : local_(constraints.local_batches()) {}

  /// @param stages  stages of the whole plan; 0 = unknown, but more than one
  [[nodiscard]] const SliceSizes& at(int microbatches, int replicas, int stages) const {
    const bool keeps = stages == 1 && replicas == static_cast<int>(local_.size());
    const auto [entry, added] = table_.try_emplace({microbatches, keeps ? -1 : replicas});
    if (added) entry->second = slices_of(classes(microbatches), replicas, keeps);
    return entry->second;
  }
  /// Samples of each micro-batch, in order: what a stage with one replica runs.
  [[nodiscard]] const std::vector<std::int64_t>& microbatches(int count) const { return classes(count).microbatches; }
  [[nodiscard]] const std::vector<std::int64_t>& local() const { return local_; }

 private:
  [[nodiscard]] const PieceClasses& classes(int microbatches) const {
    return classes_.try_emplace(microbatches, local_, microbatches).first->second;
  }

  std::vector<std::int64_t> local_;
  mutable std::map<std::pair<int, int>, SliceSizes> table_;
  mutable std::map<int, PieceClasses> classes_;  // by micro-batches
};

}  // namespace autopar
