#include "watch.hpp"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>

namespace autopar::detail {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kTokenBytes = 16;
constexpr auto kConnectLimit = 2s;   ///< for one address
constexpr auto kAcceptLimit = 10s;   ///< for all ranks
constexpr std::uint32_t kLongestText = 64 << 10;

template <class T>
void append(Blob& bytes, const T& value) {
  const auto end = bytes.size();
  bytes.resize(end + sizeof(T));
  std::memcpy(bytes.data() + end, &value, sizeof(T));
}

template <class T>
T read_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::vector<std::byte> random_token() {
  std::random_device device;
  std::vector<std::byte> token;
  while (token.size() < kTokenBytes) append(token, device());
  token.resize(kTokenBytes);
  return token;
}

bool wait_for(int socket, short events, std::chrono::milliseconds limit) {
  pollfd entry{socket, events, 0};
  return poll(&entry, 1, static_cast<int>(limit.count())) == 1 && (entry.revents & (events | POLLERR | POLLHUP)) != 0;
}

bool send_all(int socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

bool receive_all(int socket, std::span<std::byte> bytes, std::chrono::milliseconds limit) {
  while (!bytes.empty()) {
    if (!wait_for(socket, POLLIN, limit)) return false;
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

void configure(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const timeval limit{1, 0};
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/// IPv4 addresses, in network order, under which other hosts may reach this one.
std::vector<std::uint32_t> own_addresses() {
  std::vector<std::uint32_t> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    addresses.push_back(reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr.s_addr);
  }
  freeifaddrs(list);
  return addresses;
}

FileDescriptor connected_to(std::uint32_t address, std::uint16_t port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return {};
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = port;
  target.sin_addr.s_addr = address;
  if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0) {
    if (errno != EINPROGRESS || !wait_for(socket.number(), POLLOUT, kConnectLimit)) return {};
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) return {};
  }
  // From here on sends may block, for a second at most.
  if (fcntl(socket.number(), F_SETFL, 0) != 0) return {};
  configure(socket.number());
  return socket;
}

}  // namespace

/// What travels on the sockets: four numbers, then the two texts.
struct Watch::Frame {
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

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) ::close(number_);
}

Watch::Watch(std::shared_ptr<Health> health)
    : health_(std::move(health)), waker_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Watch::~Watch() { stop(); }

Blob Watch::listen(bool single_host) {
  token_ = random_token();
  Blob address(token_);
  listener_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(single_host ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t length = sizeof own;
  const bool open = listener_ &&
                    bind(listener_.number(), reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0 &&
                    ::listen(listener_.number(), health_->size()) == 0 &&
                    getsockname(listener_.number(), reinterpret_cast<sockaddr*>(&own), &length) == 0;
  if (!open) return address;
  append(address, own.sin_port);
  if (single_host) {
    append(address, own.sin_addr.s_addr);
  } else {
    for (const std::uint32_t each : own_addresses()) append(address, each);
  }
  return address;
}

void Watch::accept_all() {
  const auto deadline = Clock::now() + kAcceptLimit;
  while (static_cast<int>(peers_.size()) + 1 < health_->size()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left <= 0ms || !listener_ || !wait_for(listener_.number(), POLLIN, left)) break;
    FileDescriptor socket(accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) continue;
    configure(socket.number());
    Blob hello(kTokenBytes + sizeof(std::int32_t));
    if (!receive_all(socket.number(), hello, kConnectLimit)) continue;
    if (!std::equal(token_.begin(), token_.end(), hello.begin())) continue;
    peers_.push_back({Rank(read_at<std::int32_t>(hello, kTokenBytes)), std::move(socket), {}, false});
  }
  listener_ = FileDescriptor();
  if (static_cast<int>(peers_.size()) + 1 < health_->size()) {
    health_->logger().warn(std::to_string(health_->size() - 1 - static_cast<int>(peers_.size())) +
                           " ranks could not connect to rank 0's control port (firewall?): if one of them dies and the "
                           "launcher does not end the job, only stall_timeout will");
  }
  start();
}

void Watch::connect(std::span<const std::byte> address) {
  constexpr std::size_t kFixed = kTokenBytes + sizeof(std::uint16_t);
  FileDescriptor socket;
  if (address.size() >= kFixed) {
    const auto port = read_at<std::uint16_t>(address, kTokenBytes);
    for (std::size_t at = kFixed; at + sizeof(std::uint32_t) <= address.size() && !socket;
         at += sizeof(std::uint32_t)) {
      socket = connected_to(read_at<std::uint32_t>(address, at), port);
    }
  }
  if (socket) {
    Blob hello(address.begin(), address.begin() + kTokenBytes);
    append(hello, health_->self().value());
    if (send_all(socket.number(), hello)) peers_.push_back({Rank(0), std::move(socket), {}, false});
  }
  if (peers_.empty()) {
    health_->logger().warn("cannot reach rank 0's control port (firewall?): the death of a rank is noticed by the "
                           "launcher or after stall_timeout only");
  }
  start();
}

void Watch::start() {
  thread_ = std::thread([this] { loop(); });
}

void Watch::wake() noexcept {
  const std::uint64_t one = 1;
  // Fails only when the counter is full; then the thread is awake anyway.
  (void)!::write(waker_.number(), &one, sizeof one);
}

void Watch::stop() noexcept {
  stopping_.store(true);
  wake();
  if (thread_.joinable()) thread_.join();
}

void Watch::abort_after(std::chrono::milliseconds grace) noexcept {
  const auto at = (Clock::now() + grace).time_since_epoch().count();
  Clock::rep unarmed = 0;
  abort_at_.compare_exchange_strong(unarmed, at);
  wake();
}

void Watch::tell_failure(const Failure& failure) noexcept { send_to_all({Kind::kFailure, failure}, Rank::none()); }

void Watch::tell_leaving() noexcept { send_to_all({Kind::kLeft, {health_->self(), {}, {}, 0}}, Rank::none()); }

void Watch::send_to_all(const Frame& frame, Rank except) noexcept {
  const Blob bytes = frame.bytes();
  const std::lock_guard lock(sending_);
  for (Peer& peer : peers_) {
    // A peer that cannot be written to is gone; reading from it tells so.
    if (peer.socket && peer.rank != except) (void)send_all(peer.socket.number(), bytes);
  }
}

void Watch::loop() {
  std::vector<pollfd> entries;
  while (!stopping_.load()) {
    entries.assign(1, {waker_.number(), POLLIN, 0});
    for (const Peer& peer : peers_) entries.push_back({peer.socket.number(), POLLIN, 0});
    int limit = -1;
    if (const auto at = abort_at_.load(); at != 0) {
      const auto left = Clock::time_point(Clock::duration(at)) - Clock::now();
      if (left <= Clock::duration::zero()) {
        health_->logger().error("aborting: the world has failed and this process did not end by itself");
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

void Watch::read_from(Peer& peer) {
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

void Watch::take(const Frame& frame, Rank from) {
  const Rank subject = frame.failure.rank;
  if (!subject.valid() || subject.value() >= health_->size()) return;
  switch (frame.kind) {
    case Kind::kFailure: health_->note(frame.failure); break;
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

void Watch::lost(Peer& peer) {
  {
    const std::lock_guard lock(sending_);
    peer.socket = FileDescriptor();
  }
  if (!peer.left) take({Kind::kDied, {peer.rank, {}, "its process has ended without leaving the World", 0}}, peer.rank);
}

}  // namespace autopar::detail
