#include <torch/torch.h>

#include <catch_shim.hpp>

#include "../matrix.hpp"
#include "../pairwise.hpp"

using namespace numerics;

// Every row that fits this number of ranks; over threads the same rows are compared in matrix_test.cpp, so that here one
// row in five is enough to see what processes and MPI change.
template <class Factors>
void run_slice(autopar::World& world, unsigned seed) {
  std::size_t number = 0;
  for (const auto& row : pairwise_rows(Factors::levels(), seed)) {
    const auto setup = Factors::setup(row);
    if (!setup || Factors::ranks(row) != world.size() || number++ % 5 != 0) continue;
    INFO(Factors::describe(row));
    matrix_models()[static_cast<std::size_t>(row[0])].prepare(*setup, 17)(world);
  }
  CHECK(number > 0);
}

TEST_CASE("slices of the pairwise matrices equal one process, over MPI") {
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  torch::set_num_threads(1);
  autopar::World world(0, nullptr);
  run_slice<MatrixFactors>(world, 20261121);
  run_slice<ChunkedFactors>(world, 20261122);
}
