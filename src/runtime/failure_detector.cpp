#include "failure_detector.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "append.hpp"

namespace autopar::detail {
namespace {

using namespace std::chrono_literals;

constexpr auto kAcceptLimit = 10s;  ///< for all ranks
constexpr std::uint32_t kLongestText = 64 << 10;

template <class T>
T read_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace

/// What travels on the sockets: four numbers, then the two texts.
struct FailureDetector::Frame {
  Kind kind = Kind::kLeft;
  Failure failure;  ///< kLeft, kDied: only the rank

  static constexpr std::size_t kHead = 5 * sizeof(std::uint32_t);

  [[nodiscard]] Blob bytes() const {
    const std::string action = failure.action.substr(0, kLongestText);
    const std::string message = failure.message.substr(0, kLongestText);
    Blob result;
    append(result, kind);
    append(result, failure.rank.value());
    append(result, static_cast<std::int32_t>(failure.code));
    append(result, static_cast<std::uint32_t>(action.size()));
    append(result, static_cast<std::uint32_t>(message.size()));
    for (const std::string* part : {&action, &message}) {
      const auto raw = std::as_bytes(std::span(*part));
      result.insert(result.end(), raw.begin(), raw.end());
    }
    return result;
  }

  /// Takes one whole frame from the front of `bytes`; false if there is none yet.
  [[nodiscard]] bool take_from(Blob& bytes) {
    if (bytes.size() < kHead) return false;
    const auto action = read_at<std::uint32_t>(bytes, 12);
    const auto message = read_at<std::uint32_t>(bytes, 16);
    if (action > kLongestText || message > kLongestText || bytes.size() < kHead + action + message) return false;
    kind = read_at<Kind>(bytes, 0);
    const char* text = reinterpret_cast<const char*>(bytes.data() + kHead);
    failure = {Rank(read_at<std::int32_t>(bytes, 4)), std::string(text, action), std::string(text + action, message),
               read_at<std::int32_t>(bytes, 8)};
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(kHead + action + message));
    return true;
  }
};

FailureDetector::FailureDetector(std::shared_ptr<Health> health, int lifeline)
    : health_(std::move(health)), lifeline_(lifeline), waker_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

FailureDetector::~FailureDetector() { stop(); }

Blob FailureDetector::listen(bool single_host) {
  port_ = std::make_unique<ControlPort>(health_->size(), single_host);
  return port_->address();
}

void FailureDetector::accept_all() {
  auto admitted = port_->admit(kAcceptLimit, lifeline_);
  port_.reset();
  if (const auto missing = health_->size() - 1 - static_cast<int>(admitted.size()); missing > 0) {
    health_->logger().warn(std::to_string(missing) +
                           " ranks could not connect to rank 0's control port (firewall?): if one of them dies and the "
                           "launcher does not end the job, only stall_timeout will");
  }
  start(std::move(admitted));
}

void FailureDetector::connect(std::span<const std::byte> address) {
  std::vector<Admitted> admitted;
  if (auto port = connect_to_control_port(address, health_->self(), lifeline_)) {
    admitted.push_back(std::move(*port));
  } else {
    health_->logger().warn(
        "cannot reach rank 0's control port (firewall?): the death of a rank is noticed by the "
        "launcher or after stall_timeout only");
  }
  start(std::move(admitted));
}

void FailureDetector::start(std::vector<Admitted> admitted) {
  for (Admitted& one : admitted) {
    peers_.push_back({one.rank, std::move(one.socket), std::move(one.lifeline), {}, false});
  }
  thread_ = std::thread([this] { loop(); });
}

void FailureDetector::wake() noexcept {
  const std::uint64_t one = 1;
  // Fails only when the counter is full; then the thread is awake anyway.
  (void)!::write(waker_.number(), &one, sizeof one);
}

void FailureDetector::stop() noexcept {
  stopping_.store(true);
  wake();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(sending_);
  for (Peer& peer : peers_) peer.lifeline = FileDescriptor();
}

void FailureDetector::abort_after(std::chrono::milliseconds grace) noexcept {
  const auto at = (Clock::now() + grace).time_since_epoch().count();
  Clock::rep unarmed = 0;
  abort_at_.compare_exchange_strong(unarmed, at);
  wake();
}

void FailureDetector::tell_failure(const Failure& failure) noexcept {
  send_to_all({Kind::kFailure, failure}, Rank::none());
}

void FailureDetector::tell_leaving() noexcept {
  send_to_all({Kind::kLeft, {health_->self(), {}, {}, 0}}, Rank::none());
}

void FailureDetector::send_to_all(const Frame& frame, Rank except) noexcept {
  const Blob bytes = frame.bytes();
  const std::lock_guard lock(sending_);
  for (Peer& peer : peers_) {
    // A peer that cannot be written to is gone; reading from it tells so.
    if (peer.socket && peer.rank != except) (void)send_all(peer.socket.number(), bytes);
  }
}

void FailureDetector::loop() {
  std::vector<pollfd> entries;
  while (!stopping_.load()) {
    entries.assign(1, {waker_.number(), POLLIN, 0});
    for (const Peer& peer : peers_) entries.push_back({peer.socket.number(), POLLIN, 0});
    int limit = -1;
    if (const auto at = abort_at_.load(); at != 0) {
      const auto left = Clock::time_point(Clock::duration(at)) - Clock::now();
      if (left <= Clock::duration::zero()) {
        health_->logger().error("aborting: the world has failed and this process did not end by itself");
        // Who is stopped holds a duplicate of it, and hydra would wait for its end.
        if (lifeline_ >= 0) ::shutdown(lifeline_, SHUT_RDWR);
        std::abort();
      }
      limit = static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count()) + 1;
    }
    if (poll(entries.data(), entries.size(), limit) < 0) continue;
    if ((entries[0].revents & POLLIN) != 0) {
      std::uint64_t count = 0;
      (void)!::read(waker_.number(), &count, sizeof count);
    }
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (entries[i + 1].revents != 0) read_from(peers_[i]);
    }
  }
}

void FailureDetector::read_from(Peer& peer) {
  std::array<std::byte, 4096> chunk;
  const ssize_t got = ::recv(peer.socket.number(), chunk.data(), chunk.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return;
  if (got <= 0) {
    lost(peer);
    return;
  }
  peer.unread.insert(peer.unread.end(), chunk.begin(), chunk.begin() + got);
  Frame frame;
  while (frame.take_from(peer.unread)) take(frame, peer.rank);
}

void FailureDetector::take(const Frame& frame, Rank from) {
  const Rank subject = frame.failure.rank;
  if (!subject.valid() || subject.value() >= health_->size()) return;
  switch (frame.kind) {
    case Kind::kFailure:
      health_->note(frame.failure);
      break;
    case Kind::kLeft:
      health_->note_left(subject);
      for (Peer& peer : peers_) peer.left = peer.left || peer.rank == subject;
      break;
    case Kind::kDied:
      health_->note(frame.failure);
      health_->note_left(subject);
      abort_after(kDeathGrace);
      break;
  }
  if (health_->self() == Rank(0)) send_to_all(frame, from);
}

void FailureDetector::lost(Peer& peer) {
  {
    const std::lock_guard lock(sending_);
    peer.socket = FileDescriptor();
  }
  if (peer.left && !health_->failed()) return;
  const Failure death{peer.rank, {}, "its process has ended without leaving the World", 0};
  // The launcher may end this process any moment, so the first thing is to say why.
  if (!health_->failed()) {
    const std::string action = health_->action();
    health_->logger().error("rank " + std::to_string(peer.rank.value()) + " failed: " + death.message + "; rank " +
                            std::to_string(health_->self().value()) +
                            (action.empty() ? " has made no call" : " is in or after '" + action + "'"));
  }
  take({Kind::kDied, death}, peer.rank);
}

}  // namespace autopar::detail
