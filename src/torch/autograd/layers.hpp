#pragma once

#include <autopar/capture/op_graph.hpp>

#include "ops/registry.hpp"

namespace autopar::autograd {

/// Whether the op is always a layer, with any operands, as torch::linear is.
[[nodiscard]] inline bool is_layer(const OpGraph& graph, OpId op) {
  const auto& layer = ops::definition_of(graph.op(op).op).layer;
  return layer && layer->always;
}

/// Whether the op is a layer with a bias.
[[nodiscard]] inline bool has_layer_bias(const OpGraph& graph, OpId op) {
  return is_layer(graph, op) && graph.input(op, ops::definition_of(graph.op(op).op).layer->bias).valid();
}

}  // namespace autopar::autograd
