#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/core/ids.hpp>

namespace autopar::detail {

/// What moves a group's tensors. The operations are over when they return: for what the device does next, as for the
/// host where memory is the host's. Without autograd.
///
/// Groups that `init_groups` makes have transports of their own; the tensor shards of a stage have the run's.
class GroupState {
 public:
  virtual ~GroupState() = default;
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  [[nodiscard]] const std::vector<Rank>& ranks() const { return ranks_; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] int place() const { return place_; }

  /// Element-wise sum over the members, in place. @pre `tensor` has no gaps
  /// @param meanwhile  called while the sum is under way, for what can be computed without it and exchanges nothing
  virtual void all_reduce(const at::Tensor& tensor, const std::function<void()>& meanwhile = {}) = 0;
  /// In place along dim 0, of as many equal parts as there are members: this rank's becomes the sum.
  virtual void reduce_scatter(const at::Tensor& parts, const std::function<void()>& meanwhile = {}) = 0;
  /// In place along dim 0: every part becomes its member's.
  virtual void all_gather(const at::Tensor& parts) = 0;

  /// Between two members, of host memory.
  virtual void send(const at::Tensor& tensor, int to_place) = 0;
  virtual void receive(const at::Tensor& tensor, int from_place) = 0;

 protected:
  GroupState(std::vector<Rank> ranks, int place) : ranks_(std::move(ranks)), place_(place) {}

 private:
  std::vector<Rank> ranks_;
  int place_;
};

}  // namespace autopar::detail
