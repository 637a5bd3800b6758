#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/replay/replay.hpp"
#include "torch/interpret/norm_sample.hpp"

namespace autopar::interpret {

/// Calls batch norms with temporary running statistics, so that only the slice's statistics go to a NormSample. One run
/// at a time.
class SliceStatistics {
 public:
  /// @param ops  the operators of a run
  SliceStatistics(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<OpId>& ops);

  /// Calls a batch norm. With momentum 1 the operator leaves the slice's statistics in its running buffers, at no cost.
  void call(replay::ReplayCall& call, const BatchNormPlan& norm, NormSample& sample);
  /// Called before each run.
  void clear() { zeros_.reset(); }

 private:
  [[nodiscard]] at::Tensor zeros_for(const at::Tensor& statistic);

  std::int64_t places_ = 0;  ///< elements that the statistics of all norms take in `zeros_`
  at::Tensor zeros_;         ///< of the current run
  std::int64_t given_ = 0;   ///< elements of `zeros_` in use
};

}  // namespace autopar::interpret
