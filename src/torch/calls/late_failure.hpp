#pragma once

#include <mutex>
#include <string>

#include "torch/ranks/ranks.hpp"

namespace autopar::calls {

/// What failed on this rank beside the program. The next call of the model throws it on all ranks. Any thread.
class LateFailure {
 public:
  /// New work, of which nothing has failed.
  void begin();
  /// The first message stays. None is taken after one of the same work was thrown.
  void put(const std::string& message);
  /// Empty if there is nothing to throw.
  [[nodiscard]] std::string look() const;
  /// All ranks have thrown what failed on some.
  void set_thrown();
  [[nodiscard]] bool is_thrown() const;

 private:
  mutable std::mutex mutex_;
  std::string message_;
  bool is_thrown_ = false;
};

/// Collective. @throws CheckpointError, on every rank, with what failed on the first of some ranks; once for each work
void require_no_late_failure(ranks::Ranks& ranks, LateFailure& failure);

}  // namespace autopar::calls
