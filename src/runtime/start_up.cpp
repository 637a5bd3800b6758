#include "start_up.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/runtime/log.hpp>

namespace autopar::detail {
namespace {

constexpr Seconds kWarning{10};
/// So many are named.
constexpr std::size_t kNamed = 8;

struct AbstractName {
  sockaddr_un address{};
  socklen_t length = 0;

  AbstractName(const std::string& job, int rank) {
    const std::string name =
        "autopar/" + std::to_string(geteuid()) + "/" + job.substr(0, 64) + "/" + std::to_string(rank);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(sizeof address.sun_family + 1 + name.size());
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

FileDescriptor datagram_socket() { return FileDescriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)); }

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kNamed) text += " and " + std::to_string(ranks.size() - kNamed) + " more";
  return text;
}

std::string in_whole_seconds(Seconds seconds) { return std::to_string(std::llround(seconds.value())) + " s"; }

}  // namespace

RollCall::RollCall(const Launcher& launcher) : job_(launcher.job), size_(launcher.size) {
  if (job_.empty() || launcher.rank < 0 || launcher.size <= 0) return;
  const AbstractName name(job_, launcher.rank);
  own_ = datagram_socket();
  if (own_ && ::bind(own_.number(), name.get(), name.length) != 0) own_ = FileDescriptor();
}

std::vector<int> RollCall::missing() const {
  std::vector<int> ranks;
  const FileDescriptor probe = datagram_socket();
  for (int rank = 0; rank < size_; ++rank) {
    const AbstractName name(job_, rank);
    if (::connect(probe.number(), name.get(), name.length) != 0) ranks.push_back(rank);
  }
  return ranks;
}

StartUp::StartUp(Seconds timeout, Launcher launcher)
    : launcher_(std::move(launcher)),
      limits_{std::min(kWarning, Seconds(timeout.value() / 2)), timeout},
      roll_call_(launcher_) {}

std::string StartUp::awaited(const std::vector<int>& missing) const {
  if (!roll_call_.works()) return "which rank is awaited cannot be told under this launcher";
  const int here = launcher_.size - static_cast<int>(missing.size());
  if (launcher_.local_size == launcher_.size) {
    if (missing.empty()) return "all ranks have begun, so one of them has stopped since, or MPI cannot connect them";
    return list_of(missing) + (missing.size() == 1 ? " has" : " have") + " not begun to make a World";
  }
  if (here < launcher_.local_size) {
    return std::to_string(launcher_.local_size - here) + " of this host's " + std::to_string(launcher_.local_size) +
           " ranks have not begun to make a World; one of " + list_of(missing);
  }
  return "all ranks of this host have begun, one on another host has not, or MPI cannot connect the hosts";
}

void StartUp::look() {
  const Seconds waited{std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count()};
  if (waited < (warned_ ? limits_.timeout : limits_.warning)) return;
  const auto missing = roll_call_.works() ? roll_call_.missing() : std::vector<int>{};
  const Rank self(launcher_.rank);
  const std::string who = self.valid() ? "rank " + std::to_string(self.value()) : "this rank";
  if (waited >= limits_.timeout) {
    throw TransportError(who + " has waited " + in_whole_seconds(waited) + " for MPI to start and gives up " +
                             "(AUTOPAR_START_TIMEOUT): " + awaited(missing) +
                             "; see what that process does before it "
                             "makes its World, or give the environment variable more seconds",
                         self, missing.empty() ? Rank::none() : Rank(missing.front()), "start of MPI");
  }
  warned_ = true;
  // One rank speaks for all that wait, where they know of one another.
  int speaker = 0;
  for (const int rank : missing) speaker += rank == speaker ? 1 : 0;
  if (roll_call_.works() && speaker != self.value()) return;
  Log(self, launcher_.size)
      .logger(LogModule::kWorld)
      .warn("has waited " + in_whole_seconds(waited) + " for MPI to start: " + awaited(missing));
}

}  // namespace autopar::detail
