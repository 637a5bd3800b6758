#include <catch_shim.hpp>

#include "../clip_kernels.hpp"

namespace gpu_mpi_clip_test {

TEST_CASE("clip_grad_norm_ on several GPUs: at most six kernels", "[gpu]") {
  autopar::World world(0, nullptr);
  gpu_clip::check_clip(world, world.size());
}

}  // namespace gpu_mpi_clip_test
