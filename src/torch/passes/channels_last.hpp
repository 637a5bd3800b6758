#pragma once

#include <optional>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/trace/capture.hpp"

namespace autopar::passes {

/// Element types for which a device has matrix units. Their convolutions take channels-last tensors without conversion.
struct MatrixUnits {
  bool half = false;    ///< float16 and bfloat16
  bool single = false;  ///< float32, as TF32
};

/// Whether channels-last data make the program's convolutions of images faster. Most of their multiplications must have
/// types for which there are units, and numbers of channels that fill them. O(graph).
[[nodiscard]] bool gains_from_channels_last(const OpGraph& graph, MatrixUnits units);

/// A program that computes with channels-last images.
struct ChannelsLastProgram {
  OpGraph graph;
  std::vector<trace::InputSpec> inputs;  ///< inputs of the capture
};

/// Captures the forward again with channels-last images. The operators and their results are the same as in `plain`,
/// which was captured with the original arguments. The caller must convert the arguments once, and give results the
/// strides of `plain`.
///
/// None if there are no images, or the forward behaves differently with this memory layout:
/// - `view` of a tensor that can no longer be viewed.
/// - `as_strided`.
/// - A `contiguous` that no longer copies, so that a write reaches more tensors.
[[nodiscard]] std::optional<ChannelsLastProgram> capture_channels_last(const OpGraph& plain,
                                                                       const torch::nn::Module& module,
                                                                       const std::vector<trace::InputSpec>& inputs,
                                                                       const trace::FlatForward& forward,
                                                                       const trace::CaptureOptions& options);

/// Makes 16-bit copies of weights channels-last if only convolutions of channels-last images read them. The copy costs
/// the same, and the convolutions need no conversion. Exact. O(graph).
[[nodiscard]] OpGraph lay_out_weight_copies(OpGraph graph);

}  // namespace autopar::passes
