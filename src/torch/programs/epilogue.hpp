#pragma once

#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/interpret/op_interpreter.hpp"

namespace autopar::programs {

/// The non-linear tail of one call, computed on completed sums, with its autograd graph.
struct EpilogueRun {
  std::map<ValueId, at::Tensor> inputs;   ///< leaves
  std::map<ValueId, at::Tensor> results;  ///< by output value
};

/// Runs BatchSemantics::epilogue, the same on every rank. Not collective.
class Epilogue {
 public:
  Epilogue(const OpGraph& graph, const algebra::BatchSemantics& plan, c10::Device device);

  [[nodiscard]] bool empty() const { return plan_.epilogue.empty(); }
  [[nodiscard]] EpilogueRun run(const std::map<ValueId, at::Tensor>& sums,
                                const std::vector<std::pair<ValueId, at::Tensor>>& prologue,
                                const interpret::SliceContext& whole, bool differentiate);
  /// Gradients of the inputs, given those of some results; only inputs that they depend on.
  [[nodiscard]] static std::map<ValueId, at::Tensor> gradients(const EpilogueRun& run,
                                                               const std::map<ValueId, at::Tensor>& result_gradients,
                                                               bool retain);

 private:
  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  interpret::OpInterpreter runner_;
};

}  // namespace autopar::programs
