#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar::autograd {

/// Whether an operator splits one tensor into views that cover it (unbind, split, chunk). Gradients may flow back, and
/// nothing writes the tensor's memory from then on.
/// @cost O(ops) for operators of these names
[[nodiscard]] bool takes_apart(const OpGraph& graph, OpId op);

/// Runs a splitting operator with a custom autograd function that joins the parts' gradients in the tensor's own memory
/// layout. libtorch joins them contiguously. If the tensor is a permuted view, like attention's queries, keys and
/// values of one product, libtorch then copies them again. Gradients that already have the layout (`joined_form_of`)
/// are passed on without a copy. Same values to the bit.
/// @pre nobody writes the tensor's memory after the call
void run_parts(replay::ReplayCall& call);

/// Whether an operator splits the result of a linear layer with a bias, or a view of it. The operator must be the only
/// reader of both.
/// @param uses  graph.uses()
[[nodiscard]] bool takes_linear_apart(const OpGraph& graph, const std::vector<std::vector<OpId>>& uses, OpId op);

/// Runs a splitting operator with a custom autograd function that bypasses the views and leads to the linear layer. The
/// layer gets the tensor in which the gradients are joined. On a GPU it also gets the bias gradient, and need not read
/// that tensor again to sum its rows. If the layer does not take a bias gradient (`takes_bias_gradient`), this function
/// is `run_parts`. Same values to the bit.
void run_parts_of_linear(replay::ReplayCall& call);

/// The place of a part in a tensor.
struct Place {
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;  ///< from the tensor's first element
};

/// The memory layout of gradients that can be joined without a copy.
struct JoinedForm {
  std::vector<std::int64_t> sizes, strides;  ///< of the whole tensor
  at::TensorOptions options;
  std::vector<Place> places;

  /// Uninitialised memory, as views of these places.
  [[nodiscard]] std::vector<at::Tensor> made() const;
};

/// The layout that gradients of `values` must have. None unless `values` are, through views, all the parts into which
/// one of the functions above split a tensor, each once.
[[nodiscard]] std::optional<JoinedForm> joined_form_of(const std::vector<at::Tensor>& values);

}  // namespace autopar::autograd
