#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <autopar/io/file_descriptor.hpp>
#include <autopar/runtime/world.hpp>

#include "siphash.hpp"

namespace autopar::detail {

/// Sends all bytes; `attached` >= 0 goes with them as a duplicate of that descriptor, over UNIX sockets only.
bool send_all(int socket, std::span<const std::byte> bytes, int attached = -1);

/// The connection to a rank that has proven to be one.
struct Admitted {
  Rank rank;
  FileDescriptor socket;
  FileDescriptor lifeline;  ///< what the other side attached, if anything
};

/// Where rank 0 takes the connections of the others while a World starts.
///
/// On one host it is a socket in a folder that no other user can enter, and the kernel names the user of who connects.
/// Between hosts it is a port, and each side proves that it knows the key, which the ranks have from MPI, by a code of
/// the other's random number: what travels is of no use to who listens or connects later. Connections are answered side
/// by side, and each has `kGreetingLimit` in all, so silent or slow strangers keep nobody out.
class ControlPort {
 public:
  static constexpr std::chrono::seconds kGreetingLimit{5};

  /// Opens a port for the other ranks of a world of `ranks`. `address()` says where nothing can be opened, too.
  ControlPort(int ranks, bool single_host);
  ControlPort(const ControlPort&) = delete;
  ControlPort& operator=(const ControlPort&) = delete;
  ~ControlPort();

  /// What the others need to connect; for their eyes only.
  [[nodiscard]] Blob address() const;
  /// Takes connections until all others are there, or for `limit`. Each gets a duplicate of `lifeline`, if that is >= 0
  /// and this is one host.
  [[nodiscard]] std::vector<Admitted> admit(std::chrono::milliseconds limit, int lifeline);

 private:
  using Clock = std::chrono::steady_clock;
  struct Guest;

  bool open_socket_in_folder();
  bool open_port(bool single_host);
  [[nodiscard]] std::optional<Guest> accept_guest() const;
  [[nodiscard]] bool is_new_rank(const Guest& guest, const std::vector<Admitted>& admitted) const;
  /// Hears a guest out. @return false if it is to be sent away
  [[nodiscard]] bool hear(Guest& guest, std::vector<Admitted>& admitted, int lifeline) const;

  const int ranks_;
  SipKey key_;
  std::string folder_;
  std::vector<std::uint32_t> addresses_;  ///< IPv4, in network order
  std::uint16_t port_ = 0;                ///< in network order; 0 = the socket in the folder
  FileDescriptor listener_;
};

/// The other ranks' side of it: connects to rank 0's control port as rank `self`, with a duplicate of `lifeline` if
/// that is >= 0 and this is one host. Nothing if it cannot be reached or does not prove to be rank 0's.
[[nodiscard]] std::optional<Admitted> connect_to_control_port(std::span<const std::byte> address, Rank self,
                                                              int lifeline);

}  // namespace autopar::detail
