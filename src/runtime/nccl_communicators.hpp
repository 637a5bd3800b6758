#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <autopar/runtime/any_transport.hpp>

#include "backend.hpp"
#include "nccl_communicator.hpp"

namespace autopar::detail {

/// A rank's communicators: one for each directed pair with it and one for each of its groups. Members that make them
/// are collective over the world. Another thread may look for errors and abort.
class NcclCommunicators {
 public:
  NcclCommunicators(WorldBackend& world, int device) : world_(world), device_(device) {}

  /// As AnyTransport.
  void connect(const std::vector<DirectedPair>& pairs);
  GroupId make_group(const std::vector<Rank>& ranks);
  /// @throws InvalidArgument if `connect` was not told of the pair
  [[nodiscard]] NcclCommunicator& between(Rank from, Rank to) const;
  /// @throws InvalidArgument if this rank is no member
  [[nodiscard]] NcclCommunicator& of_group(GroupId group) const;

  /// Errors that came up in the background become failures of the world.
  void report_errors();
  /// Ends kernels that wait for others. Returns when the graphs of the communicators' operations are destroyed.
  void abort() noexcept;
  void clear();

 private:
  [[nodiscard]] Rank rank() const { return world_.rank(); }
  [[nodiscard]] std::vector<ncclUniqueId> exchange_ids(std::size_t count,
                                                       const std::function<Rank(std::size_t)>& maker);
  void first_message(NcclCommunicator& communicator, bool sends) const;
  void first_sum(NcclCommunicator& communicator) const;
  [[nodiscard]] std::vector<NcclCommunicator*> all();

  WorldBackend& world_;
  const int device_;
  std::mutex mutex_;  ///< guards the members below, for `all`
  std::map<std::pair<Rank, Rank>, std::unique_ptr<NcclCommunicator>> pairs_;
  std::vector<std::unique_ptr<NcclCommunicator>> groups_;  ///< [group]; null where this rank is no member
};

}  // namespace autopar::detail
