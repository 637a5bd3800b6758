#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_def.hpp>
#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/replay/replay.hpp"
#include "torch/autograd/deferred_gradients.hpp"

namespace autopar {

class SideStream;

/// A backward in two parts of an operator of the program. Linear layers, convolutions and embeddings have formulas
/// (those of libtorch's own backwards), and users' operators that define some.
struct SplitBackward : BackwardParts {
  bool is_product = false;     ///< a product with a weight [outputs, inputs]
  bool is_table = false;       ///< rows of a table, picked by x
  bool is_of_images = false;   ///< its samples may lack their dim
  bool of_cast = false;        ///< what is read is a cast of the weight
  bool may_be_beside = false;  ///< a product, and nothing else adds to the gradients of its parameters
  bool may_be_left = false;    ///< likewise; x is read by tensor shards that sum its gradient
  bool may_be_added = false;   ///< nothing else adds to what its parameters' gradients are already
  bool pads_rows = false;      ///< see padded_rows.hpp
  bool sums_bias = false;      ///< with kernels of the library's own, see `column_sums`
  ValueId weight, bias;        ///< the parameters, or those whose casts are read; no bias if the call has none
};

/// How the backward of an operator of the graph is split, nothing if it has to stay whole: another operator, a weight
/// that is computed from parameters, or one that the batch algebra changes.
[[nodiscard]] std::optional<SplitBackward> split_backward_of(const OpGraph& graph, const BatchPlan& plan, OpId op);

/// Runs the operator like `call.proceed()`, with the same result. In the backward it gives the gradient of x and puts
/// off those of the parameters; without `deferred` it gives those too, past the cast, or adds them itself. Plain where
/// nothing is gained: without gradients, with a frozen weight, with complex numbers.
/// @param side  where weight gradients of products of few rows are made, beside the gradient of x; null: nowhere.
/// Whoever
///              gives it joins it before anyone reads a gradient
void proceed_splitting(ReplayCall& call, const SplitBackward& split, const std::shared_ptr<DeferredGradients>& deferred,
                       const std::shared_ptr<SideStream>& side = nullptr);

/// Whether its autograd node is that of such a linear layer with a bias in training: the gradient of it may come with
/// sums over its rows (fused/summed_columns.hpp), and is not read for them then.
[[nodiscard]] bool takes_summed_columns(const at::Tensor& result);

}  // namespace autopar
