#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/deployment/world_sums.hpp"
#include "torch/interpret/op_interpreter.hpp"

namespace autopar::programs {

/// What is known of a call before its pipeline runs.
struct PrologueResult {
  std::vector<std::pair<ValueId, at::Tensor>> values;  ///< BatchSemantics::prologue_values, the same on every rank
  std::vector<at::Tensor> counts;                      ///< by BatchSemantics::counts: 0-dim f64 on the rank's device
};

/// Runs BatchSemantics::prologue on this rank's own local batch and completes its sums over all ranks.
class Prologue {
 public:
  using Lookup = std::function<at::Tensor(ValueId)>;  ///< handle of a buffer or parameter leaf

  Prologue(const OpGraph& graph, const algebra::BatchSemantics& plan, c10::Device device, Lookup lookup);

  /// @param inputs  by OpGraph::inputs, this rank's. Collective over the world of `sums`.
  [[nodiscard]] PrologueResult run(const std::vector<at::Tensor>& inputs, const interpret::SliceContext& local,
                                   deployment::WorldSums& sums);

 private:
  struct Level {
    std::unique_ptr<interpret::OpInterpreter> all;         ///< for a rank with samples
    std::unique_ptr<interpret::OpInterpreter> replicated;  ///< for a rank without: what does not depend on samples
  };
  [[nodiscard]] replay::Environment leaves(const std::vector<at::Tensor>& inputs) const;
  [[nodiscard]] at::Tensor local_count(const LossCount& count, const replay::Environment& values,
                                       bool has_samples) const;

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  c10::Device device_;
  Lookup lookup_;
  std::vector<Level> levels_;
};

}  // namespace autopar::programs
