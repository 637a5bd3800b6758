#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include <autopar/core/ids.hpp>
#include <autopar/runtime/world.hpp>

namespace autopar {

namespace detail {
class GroupState;
}

/// Ranks that hold one tensor together, and this rank's place among them. A handle: copies are the same group.
///
/// `Group()` is this rank alone; its collectives complete at once. All members make the same calls in the same order.
/// CPU tensors are sent over the World's host transport, tensors of the group's CUDA device over NCCL.
class Group {
 public:
  /// This rank alone.
  Group() = default;
  explicit Group(std::shared_ptr<detail::GroupState> state) : state_(std::move(state)) {}

  [[nodiscard]] int size() const;
  /// This rank's index among the members, 0 <= place < size().
  [[nodiscard]] int place() const;
  [[nodiscard]] bool is_alone() const { return size() == 1; }
  /// Ascending; empty for `Group()`.
  [[nodiscard]] std::vector<Rank> ranks() const;

  /// Whether both are the same group, not only groups of the same ranks.
  friend bool operator==(const Group&, const Group&) = default;

  /// For this layer's implementation.
  [[nodiscard]] const std::shared_ptr<detail::GroupState>& state() const { return state_; }

 private:
  std::shared_ptr<detail::GroupState> state_;  ///< null for this rank alone
};

/// A world in tiles of consecutive ranks. Tiles are replicas: each holds the same tensors.
///
///     rank        0  1  2  3      init_groups(world, 2)
///     tensor      [0  1][2  3]    shards of one tensor
///     replicas    {0, 2} {1, 3}   holders of the same shard
struct Groups {
  Group tensor;    ///< this rank's tile [i*g, (i+1)*g)
  Group replicas;  ///< the ranks with this place in all tiles (the data-parallel peers)
  Group world;     ///< all ranks
};

/// Makes the groups for tiles of `group_size` ranks (Shoeybi et al. 2019, "Megatron-LM", section 5.1). Collective over
/// the world. Groups, and all that holds them (layers, values, graphs), must be destroyed before the World.
/// @param device  of the layers' tensors
/// @throws InvalidArgument, on every rank, if the size does not tile the world, or ranks pass different sizes
[[nodiscard]] Groups init_groups(World& world, int group_size, c10::Device device);

}  // namespace autopar
