#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/core/ids.hpp>
#include <autopar/runtime/any_transport.hpp>

namespace autopar::detail {

/// What moves a group's tensors: a transport of the host and, where the group computes on a CUDA device, one of NCCL.
/// The operations block as `AnyTransport::wait` does: the host for host memory alone. Without autograd.
class GroupState {
 public:
  /// A transport and this group's id on it.
  struct Wire {
    AnyTransport transport;
    GroupId group;
  };

  /// @param device  without a transport where tensors are on the host
  GroupState(std::vector<Rank> ranks, Rank self, Wire host, Wire device);

  [[nodiscard]] const std::vector<Rank>& ranks() const { return ranks_; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] int place() const { return place_; }

  /// Element-wise sum over the members, in place. @pre `tensor` has no gaps
  void all_reduce(const at::Tensor& tensor);
  /// In place along dim 0, of as many equal parts as there are members: this rank's becomes the sum.
  void reduce_scatter(const at::Tensor& parts);
  /// In place along dim 0: every part becomes its member's.
  void all_gather(const at::Tensor& parts);

  /// Between two members, of host memory.
  void send(const at::Tensor& tensor, int to_place);
  void receive(const at::Tensor& tensor, int from_place);

 private:
  [[nodiscard]] Wire& wire_of(const at::Tensor& tensor);

  std::vector<Rank> ranks_;
  int place_;
  Wire host_, device_;
};

}  // namespace autopar::detail
