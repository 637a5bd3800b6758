#pragma once

#include <c10/core/DeviceType.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Turns what torch::nn::Linear does in C++ (t + addmm for matrices, t + matmul + add_ for more dimensions), and the
/// same by hand (x.matmul(w.t()) + b), into one aten::linear each. Fewer operators to call and to place, and no
/// in-place addition that forbids a cut. Only samples times a weight that does not grow with the batch: other products
/// (of a sum over samples, of samples with samples) have meanings to the batch algebra that a layer has not.
///
/// Exact: aten::linear runs the same kernels, except that the bias of more than two dimensions may be added inside the
/// matrix product instead of after it, which changes the last bit of a result at most. On CUDA devices, where a pass
/// over a result is a kernel of its own, a bias in single precision that is added in place to a product of 16 bits, as
/// under autocast, gets a cast: its rounding replaces that of the product before the addition. Values and ops are
/// renumbered. O(graph).
/// @param device  that will run the graph
[[nodiscard]] OpGraph fold_linear(OpGraph graph, c10::DeviceType device = c10::DeviceType::CPU);

}  // namespace autopar::passes
