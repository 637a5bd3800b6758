#include "rank_watch.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "leftovers.hpp"

namespace autopar::tool {

RankWatch::RankWatch(std::string job) : job_(std::move(job)), ends_(::epoll_create1(EPOLL_CLOEXEC)) {}

void RankWatch::look() {
  const auto found = processes_of(job_);
  for (const auto& each : found) {
    const auto is_parent = [&](const JobProcess& other) {
      return other.process == each.parent && other.rank == each.rank;
    };
    // What a rank has started itself comes and goes.
    if (!each.rank || processes_.contains(each.process) || std::ranges::any_of(found, is_parent)) continue;
    FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, each.process, 0)));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = static_cast<std::uint64_t>(each.process) << 32 | static_cast<std::uint32_t>(*each.rank);
    if (process && ::epoll_ctl(ends_.number(), EPOLL_CTL_ADD, process.number(), &event) == 0)
      processes_.emplace(each.process, std::move(process));
  }
}

// The system has them in the order in which they ended, however late this process looks.
void RankWatch::note_ends(double now) {
  std::array<epoll_event, 64> events;
  for (;;) {
    const int count = ::epoll_wait(ends_.number(), events.data(), events.size(), 0);
    for (int i = 0; i < count; ++i) {
      const auto data = events[static_cast<std::size_t>(i)].data.u64;
      ended_.push_back({static_cast<int>(static_cast<std::uint32_t>(data)), now});
      processes_.erase(static_cast<::pid_t>(data >> 32));  // and with its descriptor the event
    }
    if (count < static_cast<int>(events.size())) return;
  }
}

std::optional<int> RankWatch::first_ended(double since) const {
  const auto first = std::ranges::find_if(ended_, [&](const End& end) { return end.time >= since; });
  return first == ended_.end() ? std::nullopt : std::optional(first->rank);
}

}  // namespace autopar::tool
