#include <autopar/shard/group.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <ATen/ops/view_as_real.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>
#include <autopar/torch/device.hpp>

#include "shard/group_state.hpp"

namespace autopar {

namespace {

Buffer wire_buffer_of(const at::Tensor& tensor) {
  AUTOPAR_ASSERT(tensor.is_contiguous(), "a transport moves memory without gaps");
  auto owner = std::make_shared<at::Tensor>(tensor);
  auto* data = tensor.numel() > 0 ? static_cast<std::byte*>(tensor.data_ptr()) : nullptr;
  return {data, static_cast<std::size_t>(tensor.nbytes()), std::move(owner)};
}

DType summed_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kFloat:
    case at::kComplexFloat:
      return DType::kF32;
    case at::kDouble:
    case at::kComplexDouble:
      return DType::kF64;
    case at::kLong:
      return DType::kI64;
    default:
      throw InvalidArgument(std::string("cannot sum tensors of type ") + c10::toString(tensor.scalar_type()) +
                            " over ranks; use a floating or complex type, or int64");
  }
}

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
    const bool is_member = std::ranges::find(ranks, self_) != ranks.end();
    detail::GroupState::Wire host{host_, {}}, device{device_, {}};
    if (ranks.size() > 1) {
      host.group = host.transport.make_group(ranks);
      if (device.transport) device.group = device.transport.make_group(ranks);
    }
    if (!is_member) return {};
    return Group(std::make_shared<detail::GroupState>(ranks, self_, std::move(host), std::move(device)));
  }

 private:
  Rank self_;
  AnyTransport host_, device_;
};

}  // namespace

namespace detail {

GroupState::GroupState(std::vector<Rank> ranks, Rank self, Wire host, Wire device)
    : ranks_(std::move(ranks)),
      place_(static_cast<int>(std::ranges::find(ranks_, self) - ranks_.begin())),
      host_(std::move(host)),
      device_(std::move(device)) {}

GroupState::Wire& GroupState::wire_of(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return host_;
  if (!device_.transport) {
    throw InvalidArgument("a tensor on " + tensor.device().str() +
                          ", but the groups were made for the CPU; pass its device to init_groups");
  }
  return device_;
}

void GroupState::all_reduce(const at::Tensor& tensor) {
  auto& wire = wire_of(tensor);
  wire.transport.wait(wire.transport.all_reduce(wire_buffer_of(tensor), summed_type(tensor), wire.group));
}

void GroupState::reduce_scatter(const at::Tensor& parts) {
  auto& wire = wire_of(parts);
  wire.transport.wait(wire.transport.reduce_scatter(wire_buffer_of(parts), summed_type(parts), wire.group));
}

void GroupState::all_gather(const at::Tensor& parts) {
  auto& wire = wire_of(parts);
  wire.transport.wait(wire.transport.all_gather(wire_buffer_of(parts), wire.group));
}

void GroupState::send(const at::Tensor& tensor, int to_place) {
  auto& transport = host_.transport;
  transport.wait(transport.send(wire_buffer_of(tensor), ranks_[static_cast<std::size_t>(to_place)], Tag{}));
}

void GroupState::receive(const at::Tensor& tensor, int from_place) {
  auto& transport = host_.transport;
  transport.wait(transport.receive(wire_buffer_of(tensor), ranks_[static_cast<std::size_t>(from_place)], Tag{}));
}

}  // namespace detail

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
    const auto first = everyone.begin() + tile * group_size;
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

Groups init_groups(World& world, int group_size) { return init_groups(world, group_size, device(world)); }

}  // namespace autopar
