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
#include "torch/autograd/unwritten_sums.hpp"

namespace autopar::fp8 {
struct Layer;
}  // namespace autopar::fp8

namespace autopar::autograd {

class SideStream;

/// An operator's backward in two parts: the gradient of x and the gradients of the parameters. Linear layers,
/// convolutions and embeddings have formulas, the ones of libtorch's own backwards. Users' operators may define some.
struct SplitBackward : BackwardParts {
  bool is_product = false;     ///< a product with a weight [outputs, inputs]
  bool is_table = false;       ///< an embedding: rows of a table, selected by x
  bool is_of_images = false;   ///< its input may lack the batch dimension
  bool of_cast = false;        ///< the operator reads a cast of the weight
  bool may_be_beside = false;  ///< a product, and the only reader of its parameters; may run on a side stream
  bool may_be_left = false;    ///< a product, and the only reader of its parameters; x is read by tensor shards that
                               ///< sum its gradient
  bool may_be_added = false;   ///< the only reader of its parameters; may accumulate into their existing gradients
  bool pads_rows = false;      ///< see padded_rows.hpp
  bool sums_bias = false;      ///< the library's kernels sum the bias gradient, see `column_sums`
  fp8::Layer* fp8 = nullptr;   ///< a linear layer whose products run in 8 bits; null: in the operands' type
  /// As `add_weights`, but writes the sums, which hold no numbers; empty: zero them and add.
  decltype(BackwardParts::add_weights) write_weights{};
  ValueId weight, bias;  ///< the parameters, also if casts of them are read; no bias if the call has none

  /// Such layers may run in the library's products, and in 8 bits.
  [[nodiscard]] bool is_product_of_cast() const { return is_product && of_cast; }
};

/// How the backward of an operator of the graph is split; none if it has to stay whole. It stays whole for other
/// operators, for a weight that is computed from parameters, and for operators that the batch algebra changes.
[[nodiscard]] std::optional<SplitBackward> split_backward_of(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                                             OpId op);

/// What a split backward works with; any may be missing.
struct SplitServices {
  std::shared_ptr<DeferredGradients> deferred{};  ///< takes the gradients of the parameters
  /// Computes weight gradients of products of few rows, concurrently with the gradient of x. The caller joins it before
  /// anyone reads a gradient.
  std::shared_ptr<SideStream> side{};
  std::shared_ptr<UnwrittenSums> unwritten{};  ///< to which the backward writes, where it accumulates itself
};

/// Runs the operator unchanged, with the same result and a split backward. The backward gives the gradient of x and
/// defers the gradients of the parameters. Without `deferred` it gives these too, past the cast, or accumulates them
/// itself. The backward is not split if nothing is gained: without gradients, with a frozen weight, or with complex
/// numbers.
void run_split(replay::ReplayCall& call, const SplitBackward& split, const SplitServices& services);

/// Whether `result` is a linear layer's result with a bias and the autograd node of a split backward. If so, its
/// gradient may come with the bias gradient (fused/bias_gradient.hpp), and the layer then does not sum the gradient's
/// rows.
[[nodiscard]] bool takes_bias_gradient(const at::Tensor& result);

}  // namespace autopar::autograd
