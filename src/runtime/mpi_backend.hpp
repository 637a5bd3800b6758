#pragma once

#include <memory>

#include "backend.hpp"
#include "launcher.hpp"

namespace autopar::detail {

/// Whether MPI can be called in this process now.
[[nodiscard]] bool mpi_is_running();

/// Joins MPI_COMM_WORLD, initialising MPI if nobody has.
/// @throws InvalidArgument if its size is not what `launcher` or `options` say.
[[nodiscard]] std::unique_ptr<WorldBackend> join_mpi(int argc, char** argv, const WorldOptions& options,
                                                     const Launcher& launcher);

}  // namespace autopar::detail
