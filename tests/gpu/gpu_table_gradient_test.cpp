#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "torch/fused/table_gradient.hpp"

#include "gpu/kernel_error.hpp"

// The gradient of a table in kernels of the library's own, against libtorch's in double precision.
namespace gpu_table_gradient_test {

using torch::Tensor;

void check(const Tensor& rows, const Tensor& indices, std::int64_t entries, std::int64_t padding) {
  INFO(rows.sizes() << " of strides " << rows.strides() << ", " << c10::toString(rows.scalar_type()) << ", " << entries
                    << " entries, padding " << padding);
  const at::NoGradGuard no_grad;
  REQUIRE(autopar::fused::has_table_kernels(rows, indices, entries));
  const auto of_type = [&](at::ScalarType type) {
    return at::embedding_dense_backward(rows.to(type), indices, entries, padding, false);
  };
  const auto ours = autopar::fused::table_gradient(rows, indices, entries, padding), exact = of_type(at::kDouble);
  REQUIRE(ours.scalar_type() == at::kFloat);
  REQUIRE(ours.sizes() == exact.sizes());
  CHECK(gpu_test::worst_error(ours, exact) <= 1.5 * gpu_test::worst_error(of_type(at::kFloat), exact) + 1e-6);
  CHECK(torch::equal(ours, autopar::fused::table_gradient(rows, indices, entries, padding)));
}

TEST_CASE("embedding backward: error <= 1.5x libtorch's, repeatable", "[gpu]") {
  torch::manual_seed(14);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto drawn = [&](at::IntArrayRef sizes) { return torch::randn(sizes, at::kCUDA).to(type); };
    const auto below = [](std::int64_t entries, at::IntArrayRef sizes) {
      return torch::randint(entries, sizes, at::TensorOptions(at::kCUDA).dtype(at::kLong));
    };
    check(drawn({8, 1024, 2048}), below(50304, {8, 1024}), 50304, -1);
    check(drawn({8, 1024, 256}), below(3, {8, 1024}), 3, -1);
    check(drawn({4, 300, 264}), below(1000, {4, 300}).to(at::kInt), 1000, 7);
    check(drawn({4, 300, 264}), below(2, {4, 300}), 1000, 1);
    check(drawn({1, 8}), below(5, {1}), 5, -1);
    check(drawn({64, 32, 16}).transpose(0, 1), below(40, {32, 64}), 40, -1);
    check(drawn({16}).expand({512, 16}), below(40, {512}), 40, 39);
    CHECK_FALSE(autopar::fused::has_table_kernels(drawn({5, 9}), below(40, {5}), 40));  // no whole packs
    CHECK_FALSE(autopar::fused::has_table_kernels(drawn({0, 16}), below(40, {0}), 40));
  }
}

}  // namespace gpu_table_gradient_test
