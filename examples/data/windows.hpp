#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

/// Pieces of a text: what stands there, and what follows each of its places. [samples, length], of this rank.
struct Batch {
  torch::Tensor text, next;
};

/// A text cut into windows of one length, some of which are held out for validation.
///
/// Which they are depends on the seed alone. Samples are counted through all epochs, of which each has all windows in
/// an order of its own: a sample's number says what it is, so a batch is the same for every number of ranks, and a run
/// that goes on needs to know no more than its step. Of `count` samples rank r of n has [count*r/n, count*(r+1)/n).
class Windows {
 public:
  struct Place {
    int rank, ranks;
    torch::Device device;
  };

  /// @param tokens    [n], int32, on the CPU
  /// @param held_out  windows for validation; fewer where that is more than a tenth of all, at least one
  /// @throws std::runtime_error if the text has no two windows
  Windows(torch::Tensor tokens, std::int64_t length, std::int64_t held_out, std::uint64_t seed, Place place);

  [[nodiscard]] std::int64_t training_size() const { return static_cast<std::int64_t>(training_.size()); }
  [[nodiscard]] std::int64_t validation_size() const { return static_cast<std::int64_t>(validation_.size()); }

  /// This rank's of the samples from `first` on. Collective only in that all ranks ask for the same.
  Batch training(std::int64_t first, std::int64_t count);
  /// @pre first + count <= validation_size()
  [[nodiscard]] Batch validation(std::int64_t first, std::int64_t count) const;

 private:
  [[nodiscard]] Batch gathered(const std::vector<std::int64_t>& windows) const;
  [[nodiscard]] std::int64_t begin_of(std::int64_t count) const { return count * place_.rank / place_.ranks; }
  [[nodiscard]] std::int64_t end_of(std::int64_t count) const { return count * (place_.rank + 1) / place_.ranks; }
  void shuffle_for(std::int64_t epoch);

  torch::Tensor tokens_;
  std::int64_t length_;
  std::uint64_t seed_;
  Place place_;
  std::vector<std::int64_t> training_, validation_;  ///< numbers of windows; window w begins at w * length
  std::vector<std::int64_t> order_;                  ///< `training_`, shuffled
  std::int64_t epoch_ = -1;                          ///< for this epoch
};
