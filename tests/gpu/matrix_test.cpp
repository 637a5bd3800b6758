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
  std::vector<std::vector<int>> rows;
  for (const auto& row : pairwise_rows(MatrixFactors::levels(), 20261121)) {
    if (MatrixFactors::ranks(row) == world.size() && MatrixFactors::setup(row)) rows.push_back(row);
  }
  constexpr std::size_t kRows = 24;  // each makes NCCL communicators for all its pairs of ranks, which takes seconds
  REQUIRE(rows.size() >= kRows);
  for (std::size_t i = 0; i < kRows; ++i) {
    const auto& row = rows[i * rows.size() / kRows];
    INFO(MatrixFactors::describe(row));
    matrix_models()[static_cast<std::size_t>(row[0])].prepare(*MatrixFactors::setup(row), 17)(world);
  }
}
