#pragma once

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// Turns max-pooling of images by windows of neighbours, up to 256 of them, into the operator of ir/max_pool.hpp, whose
/// kernels keep a byte for each result where libtorch's keep 8 and the images. Exact where libtorch's operators run it;
/// where kernels do, the maxima are the same, and gradients are added up in single precision. O(graph).
[[nodiscard]] OpGraph fold_max_pools(OpGraph graph);

}  // namespace autopar::passes
