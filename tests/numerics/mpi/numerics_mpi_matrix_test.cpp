#include <torch/torch.h>

#include <catch_shim.hpp>

#include "../matrix.hpp"

using namespace numerics;

// Every row that fits this number of ranks; over threads the same rows are compared in matrix_test.cpp, so that here
// one row in three is enough to see what processes and MPI change.
TEST_CASE("pairwise matrix slice: MPI equals one process") {
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  torch::set_num_threads(1);
  autopar::World world(0, nullptr);
  std::size_t number = 0;
  for (const auto& row : MatrixFactors::pairwise()) {
    if (MatrixFactors::ranks(row) != world.size() || number++ % 3 != 0) continue;
    INFO(MatrixFactors::describe(row));
    matrix_models()[static_cast<std::size_t>(row[0])].prepare(MatrixFactors::setup(row), 17)(world);
  }
  CHECK(number > 0);
}
