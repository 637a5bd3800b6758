#pragma once

#include <c10/core/DeviceType.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Replaces the operators of torch::nn::Linear in C++ by one aten::linear each: t + addmm for matrices, t + matmul +
/// add_ for more dimensions. Also replaces the same by hand: x.matmul(w.t()) + b. There are then fewer operators to
/// call and to place, and no in-place addition that forbids a cut. Only for samples times a weight that does not grow
/// with the batch. Other products (of a sum over samples, of samples with samples) have different semantics in the
/// batch algebra.
///
/// Exact: aten::linear runs the same kernels, with one exception. With more than two dimensions, the bias may be added
/// inside the matrix product instead of after it. That changes at most the last bit of a result.
///
/// On CUDA devices a separate addition would be another kernel. Under autocast, a bias in single precision is added in
/// place to a 16-bit product. This bias gets a cast: its rounding replaces the rounding of the product before the
/// addition. Values and ops are renumbered. O(graph).
/// @param device  that will run the graph
[[nodiscard]] OpGraph fold_linear(OpGraph graph, c10::DeviceType device = c10::DeviceType::CPU);

}  // namespace autopar::passes
