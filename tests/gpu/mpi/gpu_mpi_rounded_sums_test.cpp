#include <torch/torch.h>

#include <catch_shim.hpp>
#include <rounded_sums_law.hpp>

#include <autopar/torch/device.hpp>

#include "torch/device/device_context.hpp"

// On devices the same bits are asked for as over threads and MPI, so all transports give the same.
TEST_CASE("rounded sums: NCCL gives the bits of fp32 additions in rank order") {
  autopar::World world(0, nullptr);
  const auto device = autopar::device(world);
  REQUIRE(device.is_cuda());
  const auto stream = [device] { return autopar::devices::context_of(device.type()).current_stream(device.index()); };
  CHECK_NOTHROW(rounded_sums_law::check(
      world, world.make_transport({autopar::TransportKind::kNccl, device.index(), stream}), device));
}
