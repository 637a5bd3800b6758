#pragma once

#include <cstdint>

#include "torch/parameters/parameter_store.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::calls {

/// Compares the bits of parameters that several ranks have whole. Reads all parameters. Collective.
/// @param call  the call that is about to run, counted from 1
/// @throws InvalidArgument on every rank, naming the parameter, two ranks and both hashes
void require_equal_replicas(ranks::Ranks& ranks, const parameters::ParameterStore& parameters, std::int64_t call);

}  // namespace autopar::calls
