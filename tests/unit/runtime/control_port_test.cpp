#include "control_port.hpp"

#include <catch_shim.hpp>

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <string>
#include <thread>

// Who gets in while a World starts, on one host (a socket in a folder) and between hosts (a port).
namespace control_port_test {

using namespace autopar;
using namespace autopar::detail;
using namespace std::chrono_literals;

constexpr std::size_t kFixed = sizeof(SipKey) + 1;  // of an address: the key and a kind

std::string path_in(const Blob& address) {
  return std::string(reinterpret_cast<const char*>(address.data()) + kFixed, address.size() - kFixed) + "/control";
}

/// As a program that knows where the port is, and nothing else.
FileDescriptor stranger_at(const Blob& address) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const auto path = path_in(address);
  std::memcpy(name.sun_path, path.data(), path.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) return {};
  return socket;
}

std::future<std::vector<Admitted>> admitting(ControlPort& port, std::chrono::milliseconds limit = 5s) {
  return std::async(std::launch::async, [&port, limit] { return port.admit(limit, STDERR_FILENO); });
}

TEST_CASE("siphash: codes of the SipHash-2-4 paper") {
  SipKey key{};
  std::vector<std::byte> message;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  CHECK(siphash(key, message) == 0x726fdb47dd0e0e31);
  for (std::size_t i = 0; i < 15; ++i) message.push_back(static_cast<std::byte>(i));
  CHECK(siphash(key, message) == 0xa129ca6149be45e5);
}

TEST_CASE("control port: all ranks are admitted, with lifelines") {
  for (const bool single_host : {true, false}) {
    CAPTURE(single_host);
    ControlPort port(4, single_host);
    const Blob address = port.address();
    auto admitted = admitting(port);
    std::vector<std::future<std::optional<Admitted>>> others;
    for (int rank = 3; rank > 0; --rank) {
      others.push_back(std::async(std::launch::async, [&address, rank] {
        return connect_to_control_port(address, Rank(rank), STDERR_FILENO);
      }));
    }
    for (auto& other : others) {
      const auto connection = other.get();
      REQUIRE(connection);
      CHECK(static_cast<bool>(connection->lifeline) == single_host);
    }
    const auto all = admitted.get();
    REQUIRE(all.size() == 3);
    int sum = 0;
    for (const auto& one : all) {
      sum += one.rank.value();
      CHECK(static_cast<bool>(one.lifeline) == single_host);
    }
    CHECK(sum == 6);
  }
}

TEST_CASE("control port: an unknown key is refused, others are not") {
  for (const bool single_host : {true, false}) {
    CAPTURE(single_host);
    ControlPort port(2, single_host);
    const Blob address = port.address();
    Blob guess = address;
    guess[3] ^= std::byte{1};
    auto admitted = admitting(port);
    CHECK_FALSE(connect_to_control_port(guess, Rank(1), -1));
    CHECK(connect_to_control_port(address, Rank(1), -1));
    CHECK(admitted.get().size() == 1);
  }
}

TEST_CASE("control port: a rank of this world is admitted once") {
  ControlPort port(3, true);
  const Blob address = port.address();
  auto admitted = admitting(port, 1s);
  CHECK(connect_to_control_port(address, Rank(1), -1));
  CHECK_FALSE(connect_to_control_port(address, Rank(1), -1));
  CHECK_FALSE(connect_to_control_port(address, Rank(0), -1));
  CHECK_FALSE(connect_to_control_port(address, Rank(3), -1));
  CHECK(admitted.get().size() == 1);
}

TEST_CASE("control port: silent and slow strangers are disconnected") {
  ControlPort port(2, true);
  const Blob address = port.address();
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(stranger_at(address));
  const auto slow = stranger_at(address);
  REQUIRE(slow);
  // Bytes that come one by one, each soon after the last, do not add up to more time.
  auto sent_away = std::async(std::launch::async, [&slow] {
    for (int i = 0; i < 200; ++i) {
      if (!send_all(slow.number(), std::array{std::byte{0}})) return true;
      if (i < 30) std::this_thread::sleep_for(std::chrono::milliseconds(ControlPort::kGreetingLimit) / 25);
    }
    return false;
  });
  auto admitted = admitting(port, 8s);
  CHECK(sent_away.get());
  CHECK(connect_to_control_port(address, Rank(1), -1));
  CHECK(admitted.get().size() == 1);
}

TEST_CASE("control port: other users cannot reach it, it leaves no file") {
  std::filesystem::path folder;
  {
    ControlPort port(2, true);
    const std::filesystem::path socket = path_in(port.address());
    folder = socket.parent_path();
    CHECK(std::filesystem::status(folder).permissions() == std::filesystem::perms::owner_all);
    CHECK(stranger_at(port.address()));  // this user can: the key decides
    if (geteuid() == 0) {
      const pid_t child = fork();
      if (child == 0) {
        const bool nobody = setgid(65534) == 0 && setuid(65534) == 0;
        ::_exit(nobody && !stranger_at(port.address()) && errno == EACCES ? 0 : 1);
      }
      int status = 1;
      waitpid(child, &status, 0);
      CHECK(status == 0);
    }
  }
  CHECK_FALSE(std::filesystem::exists(folder));
}

}  // namespace control_port_test
