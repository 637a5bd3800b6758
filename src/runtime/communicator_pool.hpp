#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <mpi.h>

namespace autopar::detail {

/// What one transport in host memory needs of MPI.
struct CommunicatorPair {
  MPI_Comm messages = MPI_COMM_NULL;
  MPI_Comm sums = MPI_COMM_NULL;
};

/// Who uses which pair: MPI has a limited number of communicators, so those of a transport that has ended serve the
/// next one. A pair has the same number on all ranks, but becomes idle when this rank's transport ends. Any thread.
class CommunicatorPool : public std::enable_shared_from_this<CommunicatorPool> {
 public:
  using Number = std::int32_t;

  /// @return the number of the new pair, idle as yet
  Number add(CommunicatorPair pair);
  /// The pair for one transport; idle again when the last copy is gone, also after the World. @pre it is idle
  [[nodiscard]] std::shared_ptr<const CommunicatorPair> take(Number number);
  /// Ascending.
  [[nodiscard]] std::vector<Number> idle() const;
  [[nodiscard]] std::size_t in_use() const;

 private:
  void give_back(Number number);

  mutable std::mutex mutex_;
  std::vector<CommunicatorPair> pairs_;
  std::vector<bool> used_;
};

/// The lowest number that all lists have, or -1.
[[nodiscard]] CommunicatorPool::Number lowest_in_all(
    const std::vector<std::vector<CommunicatorPool::Number>>& ascending);

}  // namespace autopar::detail
