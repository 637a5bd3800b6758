#pragma once

#include <functional>
#include <vector>

#include <autopar/core/dtype.hpp>
#include <autopar/core/error.hpp>
#include <autopar/runtime/compute_gate.hpp>
#include <autopar/runtime/transfer.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// Runs the exchanges of compute actions among the tensor shards of a replica, one at a time.
template <Transport Wire>
class Exchanges {
 public:
  /// @param groups  by stage, the group of this rank's replica
  Exchanges(Wire& wire, const std::vector<GroupId>& groups) : wire_(wire), groups_(groups) {}

  /// Returns when the exchange is complete; on a device, complete for work that is enqueued afterwards.
  /// @param meanwhile  called, unless empty, between the exchange's start and the wait for it
  void run(const Action& compute, Exchange kind, const Buffer& buffer, DType dtype,
           const std::function<void()>& meanwhile) {
    if (!are_in(compute)) {
      throw InvalidArgument(
          describe(compute) +
          ": it has no tensor shards to exchange values with, or the executor was not given their group");
    }
    expect(under_way_.empty(), "what is computed during an exchange begins none of its own");
    const GroupId group = groups_[compute.stage.index()];
    Transfer<Wire>& transfer = under_way_.emplace_back(Transfer<Wire>{&compute, buffer});
    switch (kind) {
      case Exchange::kAllReduce:
        transfer.ticket = wire_.all_reduce(buffer, dtype, group);
        break;
      case Exchange::kReduceScatter:
        transfer.ticket = wire_.reduce_scatter(buffer, dtype, group);
        break;
      case Exchange::kAllGather:
        transfer.ticket = wire_.all_gather(buffer, group);
        break;
    }
    transfer.travels = true;
    if (meanwhile) meanwhile();
    wire_.wait(transfer.ticket);
    under_way_.clear();
  }

  /// Whether the action is a compute action that exchanges values with other ranks.
  [[nodiscard]] bool are_in(const Action& action) const {
    return may_exchange(action.kind) && action.stage.index() < groups_.size() &&
           groups_[action.stage.index()].value >= 0;
  }

  void drain() noexcept { detail::drain(wire_, under_way_); }

 private:
  Wire& wire_;
  const std::vector<GroupId>& groups_;
  std::vector<Transfer<Wire>> under_way_;  // one at most
};

}  // namespace autopar::detail
