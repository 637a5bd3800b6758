#include <cstddef>

#include <ATen/Context.h>
#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>

#include <autopar/runtime/loopback.hpp>

#include "matrix.hpp"

namespace unwritten_memory_test {

using namespace numerics;

/// While it lives, at::empty fills memory with NaN.
class EmptyIsNan {
 public:
  EmptyIsNan() {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
  }
  EmptyIsNan(const EmptyIsNan&) = delete;
  EmptyIsNan& operator=(const EmptyIsNan&) = delete;
  ~EmptyIsNan() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

/// Sums of gradients are not zeroed: their first gradient is written. Also where it comes in parts, late, or never.
TEST_CASE("unwritten memory: no gradient is added to numbers that nobody wrote") {
  const DoublePrecision guard;
  const EmptyIsNan nan;
  REQUIRE(at::empty({2}, at::kDouble).isnan().all().item<bool>());
  torch::set_num_threads(1);
  constexpr std::size_t kEach = 3;  // of the rows, which take long
  const auto rows = MatrixFactors::pairwise();
  for (std::size_t i = 0; i < rows.size(); i += kEach) {
    INFO(MatrixFactors::describe(rows[i]));
    const auto body = matrix_models()[static_cast<std::size_t>(rows[i][0])].prepare(MatrixFactors::setup(rows[i]), 17);
    CHECK_NOTHROW(autopar::loopback::run(MatrixFactors::ranks(rows[i]), body));
  }
}

}  // namespace unwritten_memory_test
