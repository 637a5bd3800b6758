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

/// How many samples the replicas of a stage run at a time: the arithmetic of BatchSplit, summed up.
struct Shares {
  std::int64_t smallest = 0;  ///< of the shares that are not empty
  std::int64_t largest = 0;
  bool regular = true;                                 ///< no replica has an empty share of any micro-batch
  std::vector<std::pair<std::int64_t, int>> heaviest;  ///< (samples, times) of the replica with the most samples

  /// How often that replica computes.
  [[nodiscard]] int busy_times() const {
    int times = 0;
    for (const auto& [samples, often] : heaviest) times += often;
    return times;
  }
};

/// @param keeps_pieces  one stage on all ranks: each rank runs its own piece
[[nodiscard]] inline Shares shares_of(const std::vector<std::int64_t>& local, int microbatches, int replicas,
                                      bool keeps_pieces) {
  Shares out;
  std::vector<std::map<std::int64_t, int>> by_replica(static_cast<std::size_t>(replicas));
  std::vector<std::int64_t> first(local.size(), 0);
  std::partial_sum(local.begin(), local.end() - 1, first.begin() + 1);
  const auto piece = [&](std::size_t r, int m) {
    return piece_begin(local[r], first[r], m + 1, microbatches) - piece_begin(local[r], first[r], m, microbatches);
  };
  for (int m = 0; m < microbatches; ++m) {
    std::int64_t size = 0;
    for (std::size_t r = 0; r < local.size(); ++r)
      size += piece(r, m);
    for (int q = 0; q < replicas; ++q) {
      const std::int64_t share = keeps_pieces ? piece(static_cast<std::size_t>(q), m)
                                              : size * (q + 1) / replicas - size * q / replicas;
      if (share == 0) {
        out.regular = false;
        continue;
      }
      out.smallest = out.smallest == 0 ? share : std::min(out.smallest, share);
      out.largest = std::max(out.largest, share);
      ++by_replica[static_cast<std::size_t>(q)][share];
    }
  }
  std::int64_t most = -1;
  for (const auto& counts : by_replica) {
    std::int64_t total = 0;
    for (const auto& [share, times] : counts)
      total += share * times;
    if (total > most) {
      most = total;
      out.heaviest.assign(counts.begin(), counts.end());
    }
  }
  return out;
}

/// `shares_of` for one request, each combination worked out once.
class ShareTable {
 public:
  explicit ShareTable(const Constraints& constraints) : local_(constraints.local_batches()) {}

  /// @param stages  stages of the whole plan; 0 = not known, but more than one
  [[nodiscard]] const Shares& at(int microbatches, int replicas, int stages) const {
    const bool keeps = stages == 1 && replicas == static_cast<int>(local_.size());
    const auto [entry, added] = table_.try_emplace({microbatches, keeps ? -1 : replicas});
    if (added) entry->second = shares_of(local_, microbatches, replicas, keeps);
    return entry->second;
  }
  [[nodiscard]] const std::vector<std::int64_t>& local() const { return local_; }

 private:
  std::vector<std::int64_t> local_;
  mutable std::map<std::pair<int, int>, Shares> table_;
};

}  // namespace autopar
