#pragma once

#include <memory>

#include <autopar/torch/parameter_collectives.hpp>

namespace autopar::optim {

/// Collectives of one process, which has all elements of each parameter.
[[nodiscard]] std::shared_ptr<ParameterCollectives> over_whole_parameters();

}  // namespace autopar::optim
