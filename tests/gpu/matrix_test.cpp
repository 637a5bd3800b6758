#include <torch/torch.h>

#include <catch_shim.hpp>

#include <autopar/torch/device.hpp>

#include "../numerics/matrix.hpp"
#include "../numerics/pairwise.hpp"

using namespace numerics;

// In double precision a GPU's sums differ from the CPU's in the last bits only, so the tolerance is that of the CPU matrix.
template <class Factors>
void run_slice(autopar::World& world, unsigned seed, std::size_t count) {
  std::vector<std::vector<int>> rows;
  for (const auto& row : pairwise_rows(Factors::levels(), seed)) {
    if (Factors::ranks(row) == world.size() && Factors::setup(row)) rows.push_back(row);
  }
  REQUIRE(rows.size() >= count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& row = rows[i * rows.size() / count];
    INFO(Factors::describe(row));
    Setup setup = *Factors::setup(row);
    if (i % 8 > 0) setup.options.costs = "roofline";  // measuring takes seconds, and plans are given nearly whole
    matrix_models()[static_cast<std::size_t>(row[0])].prepare(setup, 17)(world);
  }
}

// Each row makes NCCL communicators for all its pairs of ranks, which takes seconds.
TEST_CASE("slices of the pairwise matrices equal one process on the CPU, over NCCL") {
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  torch::set_num_threads(1);
  autopar::World world(0, nullptr);
  REQUIRE(autopar::device(world).is_cuda());
  run_slice<MatrixFactors>(world, 20261121, 24);
  run_slice<ChunkedFactors>(world, 20261122, 12);
}
