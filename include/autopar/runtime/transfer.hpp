#pragma once

#include <exception>

#include <autopar/runtime/progress.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// A message or a collective, from its start until its completion was noticed.
template <Transport Wire>
struct Transfer {
  const Action* action;
  Buffer buffer{};
  typename Wire::Ticket ticket{};
  bool travels = false;  ///< in flight: false before the start, after the wait, and for messages within the rank
  Progress::Clock::time_point start{};
};

/// After a failure: returns when no transfer is in flight. Further errors are ignored, since the first one is being
/// reported.
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
