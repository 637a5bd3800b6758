#include "nccl_transport.hpp"

#include <autopar/runtime/config.hpp>

#if !AUTOPAR_HAS_CUDA

namespace autopar::detail {

std::shared_ptr<TransportBackend> make_nccl_transport(WorldBackend&, const TransportOptions&) {
  throw InvalidArgument("this autopar was built without CUDA and NCCL: configure it with -DAUTOPAR_CUDA=ON where both "
                        "are installed, or use the CPU");
}

}  // namespace autopar::detail

#endif
