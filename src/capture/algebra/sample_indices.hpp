#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>

namespace autopar::algebra {

/// The operator that picks samples by an argument's integers.
struct SampleIndex {
  OpId picker;  ///< the first one; none: no operator does
};

/// By tensor argument: whether its integers are indices of samples of the batch. They are if an operator uses them as
/// indices along a dim that grows with the batch. They may be used directly, or after views, copies and arithmetic. The
/// operators are index_select, gather and scatter, one_hot, and losses that take classes. Integers are not counted if
/// the program adds an offset that differs by sample: they are positions within a sample.
/// @cost O(ops + values), times the number of integer arguments
[[nodiscard]] std::vector<SampleIndex> sample_indices(const OpGraph& graph);

}  // namespace autopar::algebra
