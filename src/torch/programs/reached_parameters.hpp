#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar::programs {

/// Parameters of this rank whose gradient is defined when some values get gradients.
struct ReachedParameters {
  std::vector<at::Tensor> handles;
  std::vector<std::size_t> positions;  ///< of the rank's parameters, as RankRuntime::position_of
};

}  // namespace autopar::programs
