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

namespace autopar {

/// The autograd node of what leaves a segment: keeps what entered, and in the backward runs the segment again.
class SegmentNode : public torch::autograd::Node {
 public:
  /// Before the segment's first run. @param runner, segment, values  must outlive the node
  SegmentNode(OpInterpreter& runner, const Segment& segment, Environment& values, const SliceContext& slice,
              std::size_t batch_norms);

  /// After the first run: what leaves gets this node in place of that run's.
  static void attach(const std::shared_ptr<SegmentNode>& node);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;
  std::string name() const override { return "RecomputedSegment"; }

 private:
  class Borrowed;
  class Entrance;
  /// What entered. Of a view the elements alone, and how they lay.
  struct Kept {
    torch::autograd::SavedVariable value;
    std::vector<std::int64_t> strides;
    [[nodiscard]] at::Tensor unpack() const;
  };
  [[nodiscard]] static Kept elements_of(const at::Tensor& tensor);

  OpInterpreter& runner_;
  const Segment& segment_;
  Environment& values_;
  SliceContext slice_;
  std::size_t batch_norms_;
  std::vector<Kept> kept_;     ///< like Segment::entering
  std::vector<int> input_of_;  ///< of this node, by Segment::leaving; -1 = has no gradient
};

}  // namespace autopar
