#include <autopar/shard/group.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <autopar/core/error.hpp>

#include "shard/group_state.hpp"
#include "shard/tensor_buffer.hpp"

namespace autopar {

namespace {

/// The stream that the calling thread queues on now.
std::function<void*()> stream_of(c10::Device device) {
  return [device] { return c10::impl::getDeviceGuardImpl(device.type())->getStream(device).native_handle(); };
}

/// Throws on every rank if one is refused, so that none waits for it.
void require_tiles(World& world, int group_size) {
  const auto sizes = world.all_gather(std::as_bytes(std::span(&group_size, 1)), "init_groups");
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    int other = 0;
    if (sizes[r].size() == sizeof other) std::memcpy(&other, sizes[r].data(), sizeof other);
    if (other == group_size) continue;
    throw InvalidArgument("init_groups: rank " + std::to_string(world.rank()) + " asks for groups of " +
                          std::to_string(group_size) + ", rank " + std::to_string(r) + " for groups of " +
                          std::to_string(other) + "; pass the same size on every rank");
  }
  if (group_size >= 1 && world.size() % group_size == 0) return;
  std::string fits;
  for (int size = 1; size <= world.size(); ++size) {
    if (world.size() % size == 0) fits += (fits.empty() ? "" : ", ") + std::to_string(size);
  }
  throw InvalidArgument("init_groups: groups of " + std::to_string(group_size) + " do not tile a world of " +
                        std::to_string(world.size()) + " ranks; choose one of " + fits);
}

/// A transport of the host and, where the group computes on a CUDA device, one of NCCL.
class WorldGroup : public detail::GroupState {
 public:
  /// A transport and this group's id on it.
  struct Wire {
    AnyTransport transport;
    GroupId group;
  };

  /// @param device  without a transport where tensors are on the host
  WorldGroup(std::vector<Rank> ranks, int place, Wire host, Wire device)
      : GroupState(std::move(ranks), place), host_(std::move(host)), device_(std::move(device)) {}

  void all_reduce(const at::Tensor& tensor, const std::function<void()>& meanwhile) override {
    auto& wire = wire_of(tensor);
    const auto sum = wire.transport.all_reduce(buffer_of(tensor), summed_dtype(tensor.scalar_type()), wire.group);
    if (meanwhile) meanwhile();
    wire.transport.wait(sum);
  }
  void reduce_scatter(const at::Tensor& parts, const std::function<void()>& meanwhile) override {
    auto& wire = wire_of(parts);
    const auto sum = wire.transport.reduce_scatter(buffer_of(parts), summed_dtype(parts.scalar_type()), wire.group);
    if (meanwhile) meanwhile();
    wire.transport.wait(sum);
  }
  void all_gather(const at::Tensor& parts) override {
    auto& wire = wire_of(parts);
    wire.transport.wait(wire.transport.all_gather(buffer_of(parts), wire.group));
  }
  void send(const at::Tensor& tensor, int to_place) override {
    auto& transport = host_.transport;
    transport.wait(transport.send(buffer_of(tensor), ranks()[static_cast<std::size_t>(to_place)], Tag{}));
  }
  void receive(const at::Tensor& tensor, int from_place) override {
    auto& transport = host_.transport;
    transport.wait(transport.receive(buffer_of(tensor), ranks()[static_cast<std::size_t>(from_place)], Tag{}));
  }

 private:
  [[nodiscard]] Wire& wire_of(const at::Tensor& tensor) {
    if (tensor.is_cpu()) return host_;
    if (!device_.transport) {
      throw InvalidArgument("a tensor on " + tensor.device().str() +
                            ", but the groups were made for the CPU; pass its device to init_groups");
    }
    return device_;
  }

  Wire host_, device_;
};

/// Makes groups of one world, all with the same transports. Every rank makes all of them, in one order.
class GroupMaker {
 public:
  GroupMaker(World& world, c10::Device device) : self_(world.rank_id()), host_(world.make_transport()) {
    if (device.is_cpu()) return;
    TransportOptions options;
    options.kind = TransportKind::kNccl;
    options.device = device.index();
    options.compute_stream = stream_of(device);
    device_ = world.make_transport(options);
  }

  /// @return the group, if this rank is in it
  Group operator()(const std::vector<Rank>& ranks) {
    const auto place = std::ranges::find(ranks, self_);
    WorldGroup::Wire host{host_, {}}, device{device_, {}};
    if (ranks.size() > 1) {
      host.group = host.transport.make_group(ranks);
      if (device.transport) device.group = device.transport.make_group(ranks);
    }
    if (place == ranks.end()) return {};
    const auto number = static_cast<int>(place - ranks.begin());
    return Group(std::make_shared<WorldGroup>(ranks, number, std::move(host), std::move(device)));
  }

 private:
  Rank self_;
  AnyTransport host_, device_;
};

}  // namespace

int Group::size() const { return state_ ? state_->size() : 1; }
int Group::place() const { return state_ ? state_->place() : 0; }
std::vector<Rank> Group::ranks() const { return state_ ? state_->ranks() : std::vector<Rank>(); }

Groups init_groups(World& world, int group_size, c10::Device device) {
  require_tiles(world, group_size);
  GroupMaker make(world, device);
  const int tiles = world.size() / group_size;
  std::vector<Rank> everyone;
  for (int r = 0; r < world.size(); ++r) everyone.emplace_back(r);

  Groups groups;
  groups.world = make(everyone);
  for (int tile = 0; tile < tiles; ++tile) {
    const auto first = everyone.begin() + static_cast<std::ptrdiff_t>(tile) * group_size;
    const auto group = make({first, first + group_size});
    if (tile == world.rank() / group_size) groups.tensor = group;
  }
  for (int place = 0; place < group_size; ++place) {
    std::vector<Rank> peers;
    for (int tile = 0; tile < tiles; ++tile) peers.emplace_back(tile * group_size + place);
    const auto group = make(peers);
    if (place == world.rank() % group_size) groups.replicas = group;
  }
  return groups;
}

}  // namespace autopar
