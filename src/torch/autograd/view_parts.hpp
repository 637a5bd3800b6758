#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar {

/// Whether an operator takes one tensor apart into views that cover it (unbind, split, chunk), gradients may flow back,
/// and nothing writes that memory from then on.
/// @cost O(ops) for operators of these names
[[nodiscard]] bool takes_apart(const OpGraph& graph, OpId op);

/// Runs such an operator with an autograd function that puts the gradients of the parts together as the tensor itself
/// lies in memory. libtorch puts them together contiguously; where the tensor is a permuted view, as attention's
/// queries, keys and values are of one product, it then copies them once more. Gradients that lie so already
/// (`joined_form_of`) are handed on as they are. Same values to the bit.
/// @pre nobody writes the tensor's memory after the call
void proceed_in_parts(ReplayCall& call);

/// Whether what it takes apart is the result of a linear layer with a bias, or a view of it, and nothing reads either
/// otherwise.
/// @param uses  graph.uses()
[[nodiscard]] bool takes_linear_apart(const OpGraph& graph, const std::vector<std::vector<OpId>>& uses, OpId op);

/// Runs such an operator with an autograd function that leads past the views to the layer: it gets the very tensor in
/// which the gradients are put together, and with it, on a GPU, sums over its rows, which its bias's gradient would
/// read all of it for. Where the layer takes none (`takes_summed_columns`) as `proceed_in_parts`. Same values to the
/// bit.
void proceed_in_parts_of_linear(ReplayCall& call);

/// Where a part lies in a tensor.
struct Place {
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;  ///< from the tensor's first element
};

/// Memory for gradients that nothing copies when they are put together.
struct JoinedForm {
  std::vector<std::int64_t> sizes, strides;  ///< of all of it
  at::TensorOptions options;
  std::vector<Place> places;

  /// Memory that is not set, as views of these places.
  [[nodiscard]] std::vector<at::Tensor> made() const;
};

/// How gradients of `values` are to lie: these are, through views, all the parts that one of the functions above took a
/// tensor into, each once. None else.
[[nodiscard]] std::optional<JoinedForm> joined_form_of(const std::vector<at::Tensor>& values);

}  // namespace autopar
