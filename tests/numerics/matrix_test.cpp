#include <torch/torch.h>

#include <catch_shim.hpp>

#include <autopar/runtime/loopback.hpp>

#include "matrix.hpp"
#include "pairwise.hpp"

using namespace numerics;

namespace {

template <class Factors>
void run_row(const std::vector<int>& row) {
  const auto setup = Factors::setup(row);
  if (!setup) return;
  INFO(Factors::describe(row));
  const auto body = matrix_models()[static_cast<std::size_t>(row[0])].prepare(*setup, 17);
  CHECK_NOTHROW(autopar::loopback::run(Factors::ranks(row), body));
}

template <class Factors>
void run_full_product() {
  const auto levels = Factors::levels();
  std::vector<int> row(levels.size(), 0);
  for (bool more = true; more;) {
    run_row<Factors>(row);
    more = false;
    for (std::size_t f = 0; f < row.size() && !more; ++f) {
      more = ++row[f] < levels[f];
      if (!more) row[f] = 0;
    }
  }
}

struct DoublePrecision {
  DoublePrecision() { torch::set_default_dtype(caffe2::TypeMeta::Make<double>()); }
  ~DoublePrecision() { torch::set_default_dtype(caffe2::TypeMeta::Make<float>()); }
};

}  // namespace

TEST_CASE("every pair of model, plan and training option equals one process, over threads") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& row : pairwise_rows(MatrixFactors::levels(), 20261121)) run_row<MatrixFactors>(row);
}

TEST_CASE("every pair of model and schedule with several stages a rank or parted backwards equals one process") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& row : pairwise_rows(ChunkedFactors::levels(), 20261122)) run_row<ChunkedFactors>(row);
}

TEST_CASE("the planner's own plan equals one process on 5, 6 and 7 ranks with ragged batches") {
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

TEST_CASE("the full product equals one process, over threads", "[.nightly]") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  run_full_product<MatrixFactors>();
  run_full_product<ChunkedFactors>();
}
