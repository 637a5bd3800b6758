#pragma once

#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/plan/buckets.hpp>
#include <autopar/runtime/any_transport.hpp>

#include "torch/parameters/parameter_store.hpp"

namespace autopar::gradients {

/// A gradient of this rank, and the user's handle that it belongs to.
struct HandleGradient {
  at::Tensor handle;
  at::Tensor gradient;
};

/// Adds to a sum that may be undefined yet.
/// @param may_take  nobody else uses the gradient: it may become the sum
void add_to(at::Tensor& sum, const at::Tensor& gradient, bool may_take);

/// Where gradients of parameters are summed over the ranks that hold them.
struct GradientSums {
  AnyTransport& wire;
  const std::map<std::vector<Rank>, GroupId>& groups;  ///< by holders, of all that there are
  const parameters::ParameterStore& parameters;
  BucketPolicy buckets{};  ///< how gradients are sent
};

/// Gradients of this rank that are not in `.grad` yet, by parameter: those that calls inside no_sync accumulate, then
/// their sums over ranks, until they are taken.
class GradientStore {
 public:
  /// @param may_take  see `add_to`
  void accumulate(const parameters::ManagedTensor& tensor, const at::Tensor& gradient, bool may_take);
  [[nodiscard]] bool has_accumulated() const { return !accumulated_.empty(); }
  [[nodiscard]] Bytes accumulated() const;

  /// Sums what was accumulated over ranks. Collective: holders of a parameter accumulate it in the same calls.
  void reduce(GradientSums sums);
  /// Waits for them.
  [[nodiscard]] bool reduced_are_finite(c10::Device device) const;
  /// Leaves none.
  [[nodiscard]] std::vector<HandleGradient> take_reduced();
  void drop_reduced() { reduced_.clear(); }
  /// Of both kinds.
  void drop();

 private:
  void reduce_whole(GradientSums& sums);
  void reduce_into_shards(GradientSums& sums);

  std::map<parameters::StateId, HandleGradient> accumulated_, reduced_;
};

}  // namespace autopar::gradients
