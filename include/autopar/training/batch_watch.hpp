#pragma once

#include <cstdint>
#include <string>

namespace autopar::training {

/// The samples of a step, and the ranks that took them.
struct StepSize {
  std::int64_t samples = 0;  ///< of all ranks; 0: not known
  std::int64_t ranks = 0;

  friend bool operator==(const StepSize&, const StepSize&) = default;
};

/// Sees whether a training that goes on with another number of ranks silently takes larger or smaller steps: a loop
/// with a batch of its own for each rank does. Does not communicate; the same on all ranks.
class BatchWatch {
 public:
  /// @param before      the size of steps so far
  /// @param may_change  whether another size is allowed
  BatchWatch(const StepSize& before, std::int64_t ranks, bool may_change)
      : before_(before), size_{0, ranks}, may_change_(may_change) {}

  /// After each step. @param samples  that it took
  /// @return what to tell the user; mostly nothing
  /// @throws InvalidArgument if as many samples a rank make steps of another size, and this is not allowed
  [[nodiscard]] std::string see(std::int64_t samples);
  /// The largest step so far.
  [[nodiscard]] const StepSize& size() const { return size_.samples > 0 ? size_ : before_; }

 private:
  StepSize before_, size_;
  bool may_change_;
};

}  // namespace autopar::training
