#pragma once

#include <autopar/torch/session.hpp>

#include "torch/parameters/parameter_store.hpp"

namespace autopar::parameters {

/// What this rank holds of a parameter or buffer, for users.
[[nodiscard]] ParameterShard shard_here(const ParameterStore& parameters, const ManagedTensor& tensor);

}  // namespace autopar::parameters
