#include <torch/torch.h>

#include <catch_shim.hpp>
#include <rounded_sums_law.hpp>

#include <autopar/runtime/world.hpp>

// Over threads the same bits are asked for in unit/torch/engine.
TEST_CASE("rounded sums: MPI gives the bits of fp32 additions in rank order") {
  autopar::World world(0, nullptr);
  CHECK_NOTHROW(rounded_sums_law::check(world, world.make_transport()));
}
