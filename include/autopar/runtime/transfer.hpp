#pragma once

#include <exception>

#include <autopar/runtime/progress.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// A message or a collective, from its start until it was seen to be over.
template <Transport Wire>
struct Transfer {
  const Action* action;
  Buffer buffer{};
  typename Wire::Ticket ticket{};
  bool travels = false;  ///< not before it is started, not after it was waited for, never within the rank
  Progress::Clock::time_point start{};
};

/// After a failure: returns when none of them is under way any more. The first cause is already on its way: further
/// errors of the same failure say nothing new.
template <Transport Wire, class Transfers>
void drain(Wire& wire, Transfers& transfers) noexcept {
  for (const auto& transfer : transfers) {
    if (!transfer.travels) continue;
    try {
      wire.wait(transfer.ticket);
    } catch (const std::exception&) {
    }
  }
  transfers.clear();
}

}  // namespace autopar::detail
