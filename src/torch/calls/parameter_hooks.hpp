#pragma once

#include "torch/parameters/parameter_store.hpp"

namespace autopar::calls {

/// Gradients come to `.grad` beside autograd, which would run a hook on nothing.
/// @throws InvalidArgument naming the first parameter with a hook of the user
/// @cost nanoseconds a parameter
void require_no_hooks(const parameters::ParameterStore& parameters);

}  // namespace autopar::calls
