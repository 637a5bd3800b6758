#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/runtime/any_transport.hpp>

namespace autopar::deployment {

/// Of complex numbers their real and imaginary parts, for what knows real ones only.
[[nodiscard]] at::Tensor real_parts(const at::Tensor& tensor);

/// Small sums over the ranks of a group, beside the gradients: losses, counts, statistics.
class WorldSums {
 public:
  WorldSums() = default;
  /// @param members  ranks in the group; with one, nothing is sent
  WorldSums(AnyTransport wire, GroupId group, int members, c10::Device device)
      : wire_(std::move(wire)), group_(group), members_(members), device_(device) {}

  /// Element-wise sums over the group of tensors of the same sizes and types on every member: floating ones in f64,
  /// integers and truth values in i64. Collective over the group. Two messages at most, whatever the number of tensors.
  [[nodiscard]] std::vector<at::Tensor> sum(const std::vector<at::Tensor>& addends);

 private:
  void reduce(at::Tensor& flat);

  AnyTransport wire_;
  GroupId group_;
  int members_ = 1;
  c10::Device device_ = c10::Device(c10::kCPU);
};

}  // namespace autopar::deployment
