#pragma once

#include <optional>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/trace/capture.hpp"

namespace autopar::passes {

/// What a device has units for that multiply matrices, and take convolutions channels-last as they are.
struct MatrixUnits {
  bool half = false;    ///< float16 and bfloat16
  bool single = false;  ///< float32, as TF32
};

/// Whether channels-last data make the program's convolutions of images faster: most of their multiplications are of
/// types that the units take, with numbers of channels that fill them. O(graph).
[[nodiscard]] bool gains_from_channels_last(const OpGraph& graph, MatrixUnits units);

/// A program that computes with channels-last images.
struct ChannelsLastProgram {
  OpGraph graph;
  std::vector<InputSpec> inputs;  ///< what it was captured with
};

/// Captures the forward once more with its images channels-last. Operators, and what they compute, are those of
/// `plain`, which was captured with the arguments as they come; whoever runs it lays arguments out anew, once, and
/// gives results the strides that `plain` gives them. None if there are no images, or the forward does something else
/// with them in memory of another order: `view` of what can no longer be viewed, `as_strided`, a `contiguous` that need
/// not copy any more, so that a write reaches more tensors.
[[nodiscard]] std::optional<ChannelsLastProgram> capture_channels_last(const OpGraph& plain,
                                                                       const torch::nn::Module& module,
                                                                       const std::vector<InputSpec>& inputs,
                                                                       const FlatForward& forward,
                                                                       const CaptureOptions& options);

/// Lays out the 16-bit copies of weights that nothing but convolutions of channels-last images read as those are:
/// making the copy then costs the same, and each convolution no conversion. Exact. O(graph).
[[nodiscard]] OpGraph lay_out_weight_copies(OpGraph graph);

}  // namespace autopar::passes
