#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <autopar/runtime/world.hpp>

#include "health.hpp"

namespace autopar::detail {

/// A file descriptor with an owner.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor();

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

/// Sockets between rank 0 and every other rank, beside MPI, that tell of failures: a rank that throws or leaves says so,
/// and the end of file of one that died says it, too; rank 0 passes everything on. One thread a process reads them.
///
/// After a death the process gets `kDeathGrace` to end by itself, then it is aborted: nothing may be left over.
class Watch {
 public:
  static constexpr std::chrono::seconds kDeathGrace{5};

  explicit Watch(std::shared_ptr<Health> health);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch();

  /// Rank 0, first: opens a port, of this host only if `single_host`. What the others need to connect.
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
  /// Lets the watch go on until the process ends, which it sees to.
  static void outlive(std::unique_ptr<Watch> watch) noexcept { (void)watch.release(); }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Kind : std::uint32_t { kFailure = 1, kLeft, kDied };
  struct Frame;

  struct Peer {
    Rank rank;
    FileDescriptor socket;
    std::vector<std::byte> unread;
    bool left = false;
  };

  void start();
  void loop();
  void wake() noexcept;
  void read_from(Peer& peer);
  void take(const Frame& frame, Rank from);
  void lost(Peer& peer);
  void send_to_all(const Frame& frame, Rank except) noexcept;

  const std::shared_ptr<Health> health_;
  FileDescriptor listener_;
  FileDescriptor waker_;
  std::vector<std::byte> token_;

  std::mutex sending_;
  std::vector<Peer> peers_;  ///< sockets are read by the thread alone, written under `sending_`
  std::atomic<bool> stopping_{false};
  std::atomic<Clock::rep> abort_at_{0};  ///< 0 = not armed
  std::thread thread_;
};

}  // namespace autopar::detail
