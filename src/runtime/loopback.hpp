#pragma once

#include <memory>

#include "backend.hpp"

namespace autopar::detail {

/// One rank, no MPI.
[[nodiscard]] std::unique_ptr<WorldBackend> make_world_of_one(const WorldOptions& options);

}  // namespace autopar::detail
