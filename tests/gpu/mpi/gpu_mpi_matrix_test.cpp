#include <torch/torch.h>

#include <catch_shim.hpp>

#include <autopar/torch/device.hpp>

#include "../../numerics/matrix.hpp"

namespace gpu_matrix_test {

using namespace numerics;

// In double precision a GPU's sums differ from the CPU's in the last bits only, so the tolerance is that of the CPU
// matrix. Each row makes NCCL communicators for all its pairs of ranks, which takes seconds.
TEST_CASE("pairwise matrix slice: NCCL equals one CPU process") {
  constexpr std::size_t kRows = 36;
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  torch::set_num_threads(1);
  autopar::World world(0, nullptr);
  REQUIRE(autopar::device(world).is_cuda());
  std::vector<std::vector<int>> rows;
  for (const auto& row : MatrixFactors::pairwise()) {
    if (MatrixFactors::ranks(row) == world.size()) rows.push_back(row);
  }
  REQUIRE(rows.size() >= kRows);
  for (std::size_t i = 0; i < kRows; ++i) {
    const auto& row = rows[i * rows.size() / kRows];
    INFO(MatrixFactors::describe(row));
    auto setup = MatrixFactors::setup(row);
    if (i % 8 > 0)
      setup.options.costs =
          autopar::CostChoice::kRoofline;  // measuring takes seconds, and plans are given nearly whole
    matrix_models()[static_cast<std::size_t>(row[0])].prepare(setup, 17)(world);
  }
}

}  // namespace gpu_matrix_test
