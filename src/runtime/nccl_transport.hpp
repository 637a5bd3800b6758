#pragma once

#include <memory>

#include "backend.hpp"

namespace autopar::detail {

/// Collective. @throws InvalidArgument in a build without CUDA and NCCL, or when the device cannot be used.
[[nodiscard]] std::shared_ptr<TransportBackend> make_nccl_transport(WorldBackend& world,
                                                                    const TransportOptions& options);

}  // namespace autopar::detail
