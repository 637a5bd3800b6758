#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar {

/// Sums over all elements of parameters of which ranks hold shards: see Session::sum_over_shards. Collective.
using SumOverShards = std::function<at::Tensor(const std::vector<at::Tensor>& parameters, const at::Tensor& partial)>;

/// An optimizer whose step is not element-wise (LAMB's norms of layers): model->attach gives it what it needs to step
/// on shards as on whole parameters. Without it, all elements of a parameter are here.
class NeedsShardSums {
 public:
  virtual ~NeedsShardSums() = default;
  virtual void set_sum_over_shards(SumOverShards sum) = 0;
};

}  // namespace autopar
