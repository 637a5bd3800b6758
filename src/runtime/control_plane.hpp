#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <autopar/runtime/world.hpp>

#include "host_transport.hpp"

namespace autopar::detail {

/// Small collectives for agreement between ranks, over one host transport. See World for the contracts.
///
/// Every collective has a serial number and a kind in its tags, and the action's name with it: ranks that make
/// different calls get an error that names both.
class ControlPlane {
 public:
  explicit ControlPlane(std::shared_ptr<HostTransport> transport);

  [[nodiscard]] std::vector<Blob> all_gather(std::span<const std::byte> mine, std::string_view action,
                                             Patience patience = Patience::kStep);
  [[nodiscard]] Blob broadcast(Blob bytes, Rank root, std::string_view action);
  void all_reduce(std::span<std::byte> bytes, DType dtype, std::string_view action);
  void send(std::span<const std::byte> bytes, Rank to, std::string_view action);
  void receive(std::span<std::byte> bytes, Rank from, std::string_view action);

 private:
  enum class Kind : std::int32_t { kGather = 1, kBroadcast, kBytes };

  [[nodiscard]] Tag next_tag(Kind kind);

  std::shared_ptr<HostTransport> transport_;
  GroupId everyone_;
  std::int32_t serial_ = 0;
};

}  // namespace autopar::detail
