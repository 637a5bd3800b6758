#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>

namespace autopar {

/// The ranks of a stage as a grid of replicas and tensor shards. Replicas divide the samples; tensor shards divide the
/// operators of one replica.
///
///     Mesh mesh({Rank(0), Rank(1), Rank(2), Rank(3)}, 2);
///     mesh.tensor_group(0);   // ranks 0 and 1: one replica, the same samples
///     mesh.replica_group(0);  // ranks 0 and 2: the same shard of the parameters, other samples
///
/// Tensor shards of a replica are adjacent in the list: they communicate most, and planners put adjacent ranks on the
/// fastest links. Their ranks ascend, as in every group that communicates, so the parts of a value are in shard order.
/// @cost O(ranks) for all members
class Mesh {
 public:
  Mesh() = default;
  Mesh(std::initializer_list<Rank> ranks) : ranks_(ranks) {}
  /// @param ranks   [replica * tensor + shard]
  /// @throws InvalidArgument unless `tensor` is positive and divides the number of ranks, and each replica's ranks
  /// ascend
  Mesh(std::vector<Rank> ranks, int tensor = 1) : ranks_(std::move(ranks)), tensor_(tensor) {
    if (tensor < 1 || ranks_.size() % static_cast<std::size_t>(tensor) != 0) {
      throw InvalidArgument("mesh: " + std::to_string(ranks_.size()) + " ranks are no whole number of replicas of " +
                            std::to_string(tensor) + " tensor shards each");
    }
    for (std::size_t i = 1; i < ranks_.size(); ++i) {
      if (i % static_cast<std::size_t>(tensor) == 0 || ranks_[i - 1] < ranks_[i]) continue;
      throw InvalidArgument("mesh: rank " + std::to_string(ranks_[i].value()) + " follows rank " +
                            std::to_string(ranks_[i - 1].value()) +
                            " among the tensor shards of a replica; list them in ascending order");
    }
  }

  [[nodiscard]] const std::vector<Rank>& ranks() const { return ranks_; }
  [[nodiscard]] bool empty() const { return ranks_.empty(); }
  [[nodiscard]] int replicas() const { return static_cast<int>(ranks_.size()) / tensor_; }
  [[nodiscard]] int tensor() const { return tensor_; }

  /// @pre replica and shard are in range
  [[nodiscard]] Rank rank(int replica, int shard = 0) const {
    return ranks_[static_cast<std::size_t>(replica * tensor_ + shard)];
  }
  [[nodiscard]] bool contains(Rank rank) const { return std::ranges::find(ranks_, rank) != ranks_.end(); }
  /// The rank's replica; empty if the rank is not part of the mesh.
  [[nodiscard]] std::optional<int> replica_of(Rank rank) const {
    const auto place = place_of(rank);
    return place ? std::optional(*place / tensor_) : std::nullopt;
  }
  /// The rank's shard within its replica; empty if the rank is not part of the mesh.
  [[nodiscard]] std::optional<int> shard_of(Rank rank) const {
    const auto place = place_of(rank);
    return place ? std::optional(*place % tensor_) : std::nullopt;
  }

  /// Ranks that hold the same shard, by replica.
  [[nodiscard]] std::vector<Rank> replica_group(int shard) const {
    std::vector<Rank> group;
    for (int q = 0; q < replicas(); ++q) group.push_back(rank(q, shard));
    return group;
  }
  /// Ranks that run the same samples, by shard. Valid as long as the mesh.
  [[nodiscard]] std::span<const Rank> tensor_group(int replica) const {
    const auto tensor = static_cast<std::size_t>(tensor_);
    return std::span(ranks_).subspan(static_cast<std::size_t>(replica) * tensor, tensor);
  }

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  [[nodiscard]] std::optional<int> place_of(Rank rank) const {
    const auto found = std::ranges::find(ranks_, rank);
    return found == ranks_.end() ? std::nullopt : std::optional(static_cast<int>(found - ranks_.begin()));
  }

  std::vector<Rank> ranks_;
  int tensor_ = 1;
};

}  // namespace autopar
