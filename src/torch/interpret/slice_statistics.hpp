#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/replay/replay.hpp"
#include "torch/interpret/norm_sample.hpp"

namespace autopar {

/// Calls batch norms with running statistics, so that the statistics of the slice alone go to a NormSample. One run at
/// a time.
class SliceStatistics {
 public:
  /// @param ops  of a run
  SliceStatistics(const OpGraph& graph, const BatchPlan& plan, const std::vector<OpId>& ops);

  /// Calls a batch norm. With momentum 1 the operator leaves the slice's statistics in its running buffers, at no cost.
  void call(ReplayCall& call, const BatchNormPlan& norm, NormSample& sample);
  /// Before each run.
  void clear() { zeros_.reset(); }

 private:
  [[nodiscard]] at::Tensor zeros_for(const at::Tensor& statistic);

  std::int64_t places_ = 0;  ///< elements that the statistics of all norms take in `zeros_`
  at::Tensor zeros_;         ///< of the run under way
  std::int64_t given_ = 0;   ///< elements of these
};

}  // namespace autopar
