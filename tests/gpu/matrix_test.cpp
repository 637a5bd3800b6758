#include <torch/torch.h>

#include <catch_shim.hpp>

#include <autopar/torch/device.hpp>

#include "../numerics/matrix.hpp"
#include "../numerics/pairwise.hpp"

using namespace numerics;

// In double precision a GPU's sums differ from the CPU's in the last bits only, so the tolerance is that of the CPU matrix.
TEST_CASE("a slice of the pairwise matrix equals one process on the CPU, over NCCL") {
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  torch::set_num_threads(1);
  autopar::World world(0, nullptr);
  REQUIRE(autopar::device(world).is_cuda());
  std::size_t number = 0;
  for (const auto& row : pairwise_rows(MatrixFactors::levels(), 20261121)) {
    const auto setup = MatrixFactors::setup(row);
    if (!setup || MatrixFactors::ranks(row) != world.size() || number++ % 4 != 0) continue;
    INFO(MatrixFactors::describe(row));
    matrix_models()[static_cast<std::size_t>(row[0])].prepare(*setup, 17)(world);
  }
  CHECK(number > 0);
}
