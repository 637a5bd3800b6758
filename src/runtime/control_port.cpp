#include "control_port.hpp"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "append.hpp"

namespace autopar::detail {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr auto kConnectLimit = 2s;  ///< for one address
constexpr auto kAnswerLimit = 10s;  ///< rank 0 may come to its port later than the others
/// Strangers that may wait for an answer at once; more wait in the kernel's queue.
constexpr std::size_t kStrangers = 64;

enum class AddressKind : std::uint8_t { kPath = 1, kPort };

/// A random number that is used once.
using Nonce = std::array<std::byte, 16>;

/// What a rank answers to rank 0's nonce.
struct Hello {
  std::int32_t rank = -1;
  std::uint32_t unused = 0;
  Nonce nonce{};  ///< for rank 0's own proof
  std::uint64_t proof = 0;
};

enum class Side : std::uint8_t { kRankZero = 1, kOther };

/// Only who knows the key can make it. The side keeps one side's proof from serving as the other's.
std::uint64_t proof_of(const SipKey& key, Side side, std::int32_t rank, const Nonce& first, const Nonce& second) {
  struct {
    Side side;
    std::array<std::byte, 3> unused{};
    std::int32_t rank;
    Nonce first, second;
  } const message{side, {}, rank, first, second};
  return siphash(key, std::as_bytes(std::span(&message, 1)));
}

template <class Bytes>
void fill_with_random(Bytes& bytes) {
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw TransportError("the system has no random numbers for the control port's key", Rank::none(), Rank::none(),
                         "start of the World", errno);
  }
}

Milliseconds left_until(Clock::time_point deadline) {
  return std::max(std::chrono::ceil<Milliseconds>(deadline - Clock::now()), Milliseconds(0));
}

bool wait_for(int socket, short events, Clock::time_point deadline) {
  pollfd entry{socket, events, 0};
  const auto limit = static_cast<int>(left_until(deadline).count());
  return poll(&entry, 1, limit) == 1 && (entry.revents & (events | POLLERR | POLLHUP)) != 0;
}

/// One read of what has come, with the descriptor that came along. @return bytes; 0 = the end, -1 = nothing yet
ssize_t receive_some(int socket, std::span<std::byte> bytes, FileDescriptor& attached) {
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK ? -1 : 0;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof number);
    attached = FileDescriptor(number);
  }
  return got;
}

/// All of `value`, by `deadline`.
template <class T>
bool receive_all(int socket, T& value, FileDescriptor& attached, Clock::time_point deadline) {
  auto bytes = std::as_writable_bytes(std::span(&value, 1));
  std::size_t at = 0;
  while (at < bytes.size()) {
    if (!wait_for(socket, POLLIN, deadline)) return false;
    const ssize_t got = receive_some(socket, bytes.subspan(at), attached);
    if (got == 0) return false;
    if (got > 0) at += static_cast<std::size_t>(got);
  }
  return true;
}

/// From here on sends may block, for a second at most.
void configure(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // refused by UNIX sockets, which need none
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const timeval limit{1, 0};
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  fcntl(socket, F_SETFL, 0);
}

/// Whether the process at the other end is of this process's user, as the kernel says. Always true between hosts, where
/// the proof decides alone.
bool is_own_user(int socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) != 0) return false;
  if (own.ss_family != AF_UNIX) return true;
  ucred peer{};
  length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
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

sockaddr_un socket_in(const std::string& folder) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string path = folder + "/control";
  std::copy_n(path.begin(), std::min(path.size(), sizeof name.sun_path - 1), name.sun_path);
  return name;
}

sockaddr_in port_at(std::uint32_t address, std::uint16_t port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = port;
  name.sin_addr.s_addr = address;
  return name;
}

template <class Address>
FileDescriptor connected_to(const Address& target, Clock::time_point deadline) {
  const auto* name = reinterpret_cast<const sockaddr*>(&target);
  FileDescriptor socket(::socket(name->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return {};
  while (::connect(socket.number(), name, sizeof target) != 0) {
    if (errno == EAGAIN && left_until(deadline) > 0ms) {  // a UNIX socket whose queue is full
      poll(nullptr, 0, 10);
      continue;
    }
    if (errno != EINPROGRESS || !wait_for(socket.number(), POLLOUT, deadline)) return {};
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) return {};
    break;
  }
  configure(socket.number());
  return socket;
}

/// The greeting as seen by the rank that connects.
std::optional<Admitted> greet(FileDescriptor socket, const SipKey& key, Rank self, int lifeline) {
  const auto deadline = Clock::now() + kAnswerLimit;
  if (!socket || !is_own_user(socket.number())) return std::nullopt;
  Nonce challenge{};
  Admitted admitted{Rank(0), {}, {}};
  if (!receive_all(socket.number(), challenge, admitted.lifeline, deadline)) return std::nullopt;
  Hello hello;
  hello.rank = self.value();
  fill_with_random(hello.nonce);
  hello.proof = proof_of(key, Side::kOther, hello.rank, challenge, hello.nonce);
  if (!send_all(socket.number(), std::as_bytes(std::span(&hello, 1)), lifeline)) return std::nullopt;
  std::uint64_t proof = 0;
  if (!receive_all(socket.number(), proof, admitted.lifeline, deadline)) return std::nullopt;
  if (proof != proof_of(key, Side::kRankZero, hello.rank, hello.nonce, challenge)) return std::nullopt;
  admitted.socket = std::move(socket);
  return admitted;
}

}  // namespace

bool send_all(int socket, std::span<const std::byte> bytes, int attached) {
  while (!bytes.empty()) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (attached >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &attached, sizeof attached);
    }
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    attached = -1;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

/// Who has connected and not yet proven anything.
struct ControlPort::Guest {
  FileDescriptor socket;
  Clock::time_point deadline;
  Nonce challenge{};
  Hello hello;
  std::size_t heard = 0;  ///< bytes of `hello`
  FileDescriptor lifeline;
};

ControlPort::ControlPort(int ranks, bool single_host) : ranks_(ranks) {
  fill_with_random(key_);
  if (single_host && open_socket_in_folder()) return;
  if (!open_port(single_host)) listener_ = FileDescriptor();
}

ControlPort::~ControlPort() {
  if (folder_.empty()) return;
  ::unlink(socket_in(folder_).sun_path);
  ::rmdir(folder_.c_str());
}

bool ControlPort::open_socket_in_folder() {
  std::string name = "/tmp/autopar-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) return false;
  folder_ = name;
  const sockaddr_un own = socket_in(folder_);
  listener_ = FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  return listener_ && bind(listener_.number(), reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0 &&
         ::listen(listener_.number(), SOMAXCONN) == 0;
}

bool ControlPort::open_port(bool single_host) {
  listener_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in own = port_at(htonl(single_host ? INADDR_LOOPBACK : INADDR_ANY), 0);
  socklen_t length = sizeof own;
  const bool open = listener_ && bind(listener_.number(), reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0 &&
                    ::listen(listener_.number(), SOMAXCONN) == 0 &&
                    getsockname(listener_.number(), reinterpret_cast<sockaddr*>(&own), &length) == 0;
  port_ = own.sin_port;
  addresses_ = single_host ? std::vector<std::uint32_t>{own.sin_addr.s_addr} : own_addresses();
  return open;
}

Blob ControlPort::address() const {
  Blob address;
  if (!listener_) return address;
  append(address, key_);
  if (port_ == 0) {
    append(address, AddressKind::kPath);
    const auto path = std::as_bytes(std::span(folder_));
    address.insert(address.end(), path.begin(), path.end());
    return address;
  }
  append(address, AddressKind::kPort);
  append(address, port_);
  for (const std::uint32_t each : addresses_) append(address, each);
  return address;
}

std::optional<ControlPort::Guest> ControlPort::accept_guest() const {
  FileDescriptor socket(accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket || !is_own_user(socket.number())) return std::nullopt;
  configure(socket.number());
  Guest guest{std::move(socket), Clock::now() + kGreetingLimit, {}, {}, 0, {}};
  fill_with_random(guest.challenge);
  if (!send_all(guest.socket.number(), guest.challenge)) return std::nullopt;
  return guest;
}

bool ControlPort::is_new_rank(const Guest& guest, const std::vector<Admitted>& admitted) const {
  const Hello& hello = guest.hello;
  if (hello.proof != proof_of(key_, Side::kOther, hello.rank, guest.challenge, hello.nonce)) return false;
  const auto is_it = [&](const Admitted& one) { return one.rank.value() == hello.rank; };
  return hello.rank > 0 && hello.rank < ranks_ && std::none_of(admitted.begin(), admitted.end(), is_it);
}

bool ControlPort::hear(Guest& guest, std::vector<Admitted>& admitted, int lifeline) const {
  const auto hello = std::as_writable_bytes(std::span(&guest.hello, 1));
  const ssize_t got = receive_some(guest.socket.number(), hello.subspan(guest.heard), guest.lifeline);
  if (got <= 0) return got < 0;
  guest.heard += static_cast<std::size_t>(got);
  if (guest.heard < hello.size()) return true;
  if (!is_new_rank(guest, admitted)) return false;
  const auto proof = proof_of(key_, Side::kRankZero, guest.hello.rank, guest.hello.nonce, guest.challenge);
  if (!send_all(guest.socket.number(), std::as_bytes(std::span(&proof, 1)), port_ == 0 ? lifeline : -1)) {
    return false;
  }
  admitted.push_back({Rank(guest.hello.rank), std::move(guest.socket), std::move(guest.lifeline)});
  return false;
}

std::vector<Admitted> ControlPort::admit(std::chrono::milliseconds limit, int lifeline) {
  const auto deadline = Clock::now() + limit;
  std::vector<Admitted> admitted;
  std::vector<Guest> guests;
  std::vector<pollfd> entries;
  while (listener_ && static_cast<int>(admitted.size()) + 1 < ranks_ && Clock::now() < deadline) {
    auto until = deadline;
    const bool takes_more = guests.size() < kStrangers + static_cast<std::size_t>(ranks_);
    entries.assign(1, {takes_more ? listener_.number() : -1, POLLIN, 0});
    for (const Guest& guest : guests) {
      entries.push_back({guest.socket.number(), POLLIN, 0});
      until = std::min(until, guest.deadline);
    }
    if (poll(entries.data(), entries.size(), static_cast<int>(left_until(until).count())) < 0) continue;
    std::vector<Guest> staying;
    for (std::size_t i = 0; i < guests.size(); ++i) {
      const bool stays = entries[i + 1].revents == 0 || hear(guests[i], admitted, lifeline);
      if (stays && Clock::now() < guests[i].deadline) staying.push_back(std::move(guests[i]));
    }
    guests = std::move(staying);
    if (entries[0].revents == 0) continue;
    if (auto guest = accept_guest()) guests.push_back(std::move(*guest));
  }
  listener_ = FileDescriptor();
  return admitted;
}

std::optional<Admitted> connect_to_control_port(std::span<const std::byte> address, Rank self, int lifeline) {
  SipKey key{};
  AddressKind kind{};
  constexpr std::size_t kFixed = sizeof key + sizeof kind;
  if (address.size() < kFixed) return std::nullopt;
  std::memcpy(&key, address.data(), sizeof key);
  std::memcpy(&kind, address.data() + sizeof key, sizeof kind);
  address = address.subspan(kFixed);
  if (kind == AddressKind::kPath) {
    const std::string folder(reinterpret_cast<const char*>(address.data()), address.size());
    return greet(connected_to(socket_in(folder), Clock::now() + kConnectLimit), key, self, lifeline);
  }
  std::uint16_t port = 0;
  if (address.size() < sizeof port) return std::nullopt;
  std::memcpy(&port, address.data(), sizeof port);
  address = address.subspan(sizeof port);
  for (std::uint32_t each = 0; address.size() >= sizeof each; address = address.subspan(sizeof each)) {
    std::memcpy(&each, address.data(), sizeof each);
    auto admitted = greet(connected_to(port_at(each, port), Clock::now() + kConnectLimit), key, self, -1);
    if (admitted) return admitted;
  }
  return std::nullopt;
}

}  // namespace autopar::detail
