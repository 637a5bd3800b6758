#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "capture/replay/replay.hpp"
#include "torch/interpret/op_interpreter.hpp"
#include "torch/interpret/segment_interpreter.hpp"
#include "torch/interpret/slice.hpp"

namespace autopar::interpret {

/// The autograd node of the values that leave a segment. It keeps the values that entered, and runs the segment again
/// in the backward.
class SegmentNode : public torch::autograd::Node {
 public:
  /// Constructed before the segment's first run. @param runner, segment, values  must outlive the node
  SegmentNode(OpInterpreter& runner, const Segment& segment, replay::Environment& values, const SliceContext& slice,
              std::size_t batch_norms);

  /// Called after the first run: gives the leaving values this node instead of the first run's nodes.
  static void attach(const std::shared_ptr<SegmentNode>& node);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;
  std::string name() const override { return "RecomputedSegment"; }

 private:
  class Borrowed;
  class Entrance;
  /// A value that entered. For a small view, its elements and its original strides.
  struct Kept {
    torch::autograd::SavedVariable value;
    std::vector<std::int64_t> strides;
    [[nodiscard]] at::Tensor unpack() const;
  };
  [[nodiscard]] static Kept elements_of(const at::Tensor& tensor);

  OpInterpreter& runner_;
  const Segment& segment_;
  replay::Environment& values_;
  SliceContext slice_;
  std::size_t batch_norms_;
  std::vector<Kept> kept_;     ///< ordered as Segment::entering
  std::vector<int> input_of_;  ///< input of this node, by Segment::leaving; -1 = has no gradient
};

}  // namespace autopar::interpret
