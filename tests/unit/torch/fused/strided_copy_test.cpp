#include "torch/fused/strided_copy.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace autopar::test {
namespace strided_copy {

/// What the kernel does, in order.
void copy_as_kernel(const at::Tensor& to, const at::Tensor& from, const kernels::StridedRows& rows) {
  constexpr std::int64_t kOfPack = 16 / static_cast<std::int64_t>(sizeof(float));
  auto* const written = to.data_ptr<float>();
  const auto* const read = from.const_data_ptr<float>();
  for (long long a = 0; a < rows.sizes[0]; ++a)
    for (long long b = 0; b < rows.sizes[1]; ++b)
      for (long long c = 0; c < rows.sizes[2]; ++c)
        for (std::int64_t i = 0; i < rows.inner * kOfPack; ++i)
          written[(a * rows.to[0] + b * rows.to[1] + c * rows.to[2]) * kOfPack + i] =
              read[(a * rows.from[0] + b * rows.from[1] + c * rows.from[2]) * kOfPack + i];
}

/// Of these sizes, its dims in memory in a drawn order, some with gaps.
at::Tensor drawn(std::mt19937& random, const std::vector<std::int64_t>& sizes, bool gaps) {
  std::vector<std::int64_t> order(sizes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  if (random() % 3 != 0) std::shuffle(order.begin(), order.end() - 1, random);
  if (random() % 8 == 0) std::shuffle(order.begin(), order.end(), random);
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t step = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[static_cast<std::size_t>(order[i])] = step;
    step *= sizes[static_cast<std::size_t>(order[i])];
    if (gaps && random() % 3 == 0) step += random() % 2 == 0 ? 4 : 1;
  }
  return torch::randn({step}).as_strided(sizes, strides);
}

}  // namespace strided_copy

TEST_CASE("rows_of_both: covers both tensors for any order of dims", "[kernels]") {
  using namespace strided_copy;
  std::mt19937 random(3);
  int taken = 0;
  for (int i = 0; i < 600; ++i) {
    std::vector<std::int64_t> sizes(1 + random() % 5);
    for (auto& size : sizes) size = 1 + static_cast<std::int64_t>(random() % 4);
    sizes.back() *= random() % 4 == 0 ? 1 : 4;
    const auto from = drawn(random, sizes, random() % 2 == 0), to = drawn(random, sizes, random() % 2 == 0);
    const auto rows = fused::rows_of_both(to, from);
    if (!rows) continue;
    ++taken;
    copy_as_kernel(to, from, *rows);
    REQUIRE(torch::equal(to, from));
  }
  CHECK(taken > 150);
  CHECK_FALSE(fused::rows_of_both(torch::zeros({8}), torch::zeros({4})));
  CHECK_FALSE(fused::rows_of_both(torch::zeros({8}), torch::zeros({8}, torch::kDouble)));
  CHECK_FALSE(fused::rows_of_both(torch::zeros({0}), torch::zeros({0})));
  const auto parts = torch::zeros({2, 3, 3, 2, 8}).permute({2, 0, 3, 1, 4});  // attention's three of one product
  const auto rows = fused::rows_of_both(parts[1], torch::zeros({2, 3, 2, 8}).permute({0, 2, 1, 3}));
  REQUIRE(rows);
  CHECK(rows->inner == 4);
  CHECK(rows->sizes[2] == 6);
}

TEST_CASE("copy_strided: the fallback equals libtorch", "[kernels]") {
  const auto from = torch::randn({3, 4, 8}).transpose(0, 1);
  const auto to = torch::zeros({4, 3, 8});
  fused::copy_strided(to, from);
  CHECK(torch::equal(to, from));
}

}  // namespace autopar::test
