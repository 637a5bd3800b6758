#pragma once

// Opt-in: the only public header that includes mpi.h. Link MPI::MPI_CXX to use it.
#include <mpi.h>

#include <autopar/runtime/world.hpp>

namespace autopar {

/// A World over the ranks of `communicator`, for programs that use MPI themselves. Collective over the communicator,
/// which is duplicated. MPI is neither initialised nor finalised.
/// @throws InvalidArgument unless MPI was initialised with MPI_THREAD_MULTIPLE and `options.expected_size` fits
[[nodiscard]] World world_from(MPI_Comm communicator, WorldOptions options = {});

}  // namespace autopar
