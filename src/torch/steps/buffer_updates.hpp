#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/deployment/deployment.hpp"
#include "torch/fused/running_statistics.hpp"
#include "torch/interpret/norm_sample.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/steps/step_call.hpp"

namespace autopar::steps {

/// Writes what forward writes to buffers, once, at a call's end: statistics of batch norms, counters, sums over
/// samples. Statistics of all norms with the same holders take two exchanges together, and a GPU three kernels (for
/// each 64 norms).
class BufferUpdates {
 public:
  /// @pre what is referred to outlives this
  BufferUpdates(parameters::ParameterStore& parameters, deployment::Deployment& deployment)
      : parameters_(parameters), deployment_(deployment) {}

  /// Collective. @pre the call's forward has run
  void run(Call& call);

 private:
  struct NormPool;
  void pool_batch_norms(Call& call);
  [[nodiscard]] std::vector<fused::NormStatistics> statistics_of(const std::vector<NormPool>& pools,
                                                                 const std::vector<interpret::NormSample>& pooled,
                                                                 const OpGraph& graph) const;
  void pool_over(const std::vector<Rank>& holders, std::vector<NormPool>& pools, const OpGraph& graph);
  void blend(const std::vector<NormPool>& pools, const std::vector<std::int64_t>& channels, const at::Tensor& mean,
             const at::Tensor& variance, const OpGraph& graph);

  parameters::ParameterStore& parameters_;
  deployment::Deployment& deployment_;
};

}  // namespace autopar::steps
