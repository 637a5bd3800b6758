#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>

namespace autopar {

/// The operator that picks samples by an argument's integers.
struct SampleIndex {
  OpId picker;  ///< the first one; none: no operator does
};

/// By tensor argument: whether its integers number samples of the batch, that is, whether an operator uses them, as
/// they are or after views, copies and arithmetic, as indices along a dim that grows with the batch: in index_select,
/// gather and scatter, as the classes of a loss, in one_hot. Integers to which the program adds an offset of its own
/// that differs by sample are not counted: they are positions within a sample.
/// @cost O(ops + values), times the number of integer arguments
[[nodiscard]] std::vector<SampleIndex> sample_indices(const OpGraph& graph);

}  // namespace autopar
