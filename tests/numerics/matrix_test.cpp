#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>

#include <autopar/runtime/loopback.hpp>

#include "matrix.hpp"

namespace matrix_test {

using namespace numerics;

void run_row(const std::vector<int>& row) {
  INFO(MatrixFactors::describe(row));
  const auto body = matrix_models()[static_cast<std::size_t>(row[0])].prepare(MatrixFactors::setup(row), 17);
  CHECK_NOTHROW(autopar::loopback::run(MatrixFactors::ranks(row), body));
}

TEST_CASE("pairwise matrix: every pair of options equals one process") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& row : MatrixFactors::pairwise()) run_row(row);
}

TEST_CASE("planner's plan: is exact on 5-7 ranks with ragged batches") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto& models = matrix_models();
  for (std::size_t i = 0; i < models.size(); i += 3) {
    const int ranks = 5 + static_cast<int>(i / 3 % 3);
    Setup setup;
    for (int step = 0; step < 2; ++step) {
      auto& local = setup.local.emplace_back();
      for (int r = 0; r < ranks; ++r) local.push_back(2 + (r + step) % 4);
    }
    INFO(models[i].name << " on " << ranks << " ranks");
    CHECK_NOTHROW(autopar::loopback::run(ranks, models[i].prepare(setup, 5)));
  }
}

TEST_CASE("full product of options: equals one process", "[.nightly]") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  MatrixFactors::for_each_choice(run_row);
}

}  // namespace matrix_test
