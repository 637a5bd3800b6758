#include "torch/fused/column_sums.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

namespace autopar::test {

TEST_CASE("column_sums: the fallback equals libtorch", "[kernels]") {
  torch::manual_seed(1);
  const auto rows = torch::randn({7, 24}).to(torch::kBFloat16);
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    const auto sums = rows.sum(0, false, type);
    CHECK(torch::equal(fused::column_sums(rows, type), sums));
    for (const auto to : {torch::kFloat, torch::kDouble}) {
      const auto start = torch::randn({24}, to);
      auto added = start.clone();
      fused::add_column_sums(rows, type, added);
      CHECK(torch::equal(added, start + sums));
    }
  }
  CHECK_FALSE(fused::has_column_sums(torch::kCPU));
}

}  // namespace autopar::test
