#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>

#include <autopar/capture/op_graph.hpp>

#include "torch/autograd/unwritten_sums.hpp"

namespace autopar::engine {

/// Autograd's accumulators of a stage's compute copies. Autograd holds them weakly: if nobody held them, each call
/// would make them again, without the hooks that tell of gradients.
class GradientAccumulators {
 public:
  /// @param reduced  by ValueId: whether a parameter is in a reduction group of this rank; outlives this
  /// @param unwritten  sums to which the first gradient is written instead; null: there are none
  GradientAccumulators(const std::vector<bool>& reduced, c10::Device device,
                       std::shared_ptr<autograd::UnwrittenSums> unwritten);

  /// Sets a function that is called for each parameter of a reduction group when a backward has added its gradient.
  void on_gradient(std::function<void(ValueId)> added) { *added_ = std::move(added); }
  /// Accumulators run on the stream on which they were made: drops those of another stream than the thread's.
  void follow_stream();
  /// The copy has other memory, or requires a gradient otherwise.
  void drop(ValueId parameter) { held_.erase(parameter); }
  /// @param copy  requires a gradient
  void hold(ValueId parameter, const at::Tensor& copy);

 private:
  const std::vector<bool>& reduced_;
  c10::Device device_;
  c10::Stream stream_;
  std::shared_ptr<autograd::UnwrittenSums> unwritten_;
  std::shared_ptr<std::function<void(ValueId)>> added_ = std::make_shared<std::function<void(ValueId)>>();
  std::map<ValueId, std::shared_ptr<torch::autograd::Node>> held_;
  std::map<ValueId, std::weak_ptr<torch::autograd::Node>> told_of_;  ///< that call `added_`
};

}  // namespace autopar::engine
