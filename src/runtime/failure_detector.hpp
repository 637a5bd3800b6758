#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <autopar/runtime/world.hpp>

#include "control_port.hpp"
#include "health.hpp"

namespace autopar::detail {

/// Sockets between rank 0 and every other rank, beside MPI, that tell of failures: a rank that throws or leaves says
/// so, and the end of file of one that died says it, too; rank 0 passes everything on. One thread a process reads them.
///
/// After a death the process gets `kDeathGrace` to end by itself, then it is aborted: nothing may be left over.
///
/// Hydra kills all ranks at the end of file of one's connection to it, before anybody has said why. So on one host rank
/// 0 and the others hold duplicates of these connections ("lifelines"): whoever is left has the time to tell, and ends
/// the job itself.
class FailureDetector {
 public:
  static constexpr std::chrono::seconds kDeathGrace{5};

  /// @param lifeline  this process's connection to its launcher, -1 if that is not known
  FailureDetector(std::shared_ptr<Health> health, int lifeline);
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;
  ~FailureDetector();

  /// Rank 0, first: opens a port, on one host out of other users' reach. What the others need to connect.
  [[nodiscard]] Blob listen(bool single_host);
  /// Rank 0, second: takes the others' connections and starts to watch. Warns of ranks that do not connect in time.
  void accept_all();
  /// The other ranks: connects and starts to watch. Warns if it cannot.
  void connect(std::span<const std::byte> address);

  void tell_failure(const Failure& failure) noexcept;
  void tell_leaving() noexcept;
  /// Aborts the process unless it ends, or the watch is stopped, within `grace`.
  void abort_after(std::chrono::milliseconds grace) noexcept;
  void stop() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Kind : std::uint32_t { kFailure = 1, kLeft, kDied };
  struct Frame;

  struct Peer {
    Rank rank;
    FileDescriptor socket;
    FileDescriptor lifeline;
    std::vector<std::byte> unread;
    bool left = false;
  };

  void start(std::vector<Admitted> admitted);
  void loop();
  void wake() noexcept;
  void read_from(Peer& peer);
  void take(const Frame& frame, Rank from);
  void lost(Peer& peer);
  void send_to_all(const Frame& frame, Rank except) noexcept;

  const std::shared_ptr<Health> health_;
  const int lifeline_;
  std::unique_ptr<ControlPort> port_;  ///< rank 0, until all have connected
  FileDescriptor waker_;

  std::mutex sending_;
  std::vector<Peer> peers_;  ///< sockets are read by the thread alone, written under `sending_`
  std::atomic<bool> stopping_{false};
  std::atomic<Clock::rep> abort_at_{0};  ///< 0 = not armed
  std::thread thread_;
};

}  // namespace autopar::detail
