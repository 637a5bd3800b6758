#include <cstdint>
#include <functional>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "gpu/kernel_error.hpp"
#include "torch/fused/bias_gradient.hpp"
#include "torch/fused/joined_parts.hpp"

// Gradients of parts put together in a kernel that also sums their columns, beside libtorch's copies.
namespace gpu_joined_parts_test {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Way = std::function<Tensors(const Tensor& whole)>;

/// Parts of a whole, drawn, whose dims lie in memory in this order.
Tensors drawn(const Tensors& places, const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  Tensors parts;
  for (const auto& place : places)
    parts.push_back(torch::randn(place.permute(order).sizes(), place.options().dtype(at::kFloat))
                        .to(place.scalar_type())
                        .permute(back));
  return parts;
}

/// @return whether the kernel took them
bool check(std::vector<std::int64_t> sizes, c10::ScalarType type, const Way& way,
           const std::vector<std::int64_t>& order, bool all_given = true) {
  INFO(c10::IntArrayRef(sizes) << ", " << c10::toString(type) << ", order " << c10::IntArrayRef(order));
  const at::NoGradGuard no_grad;
  const auto whole = torch::empty(sizes, at::TensorOptions(type).device(at::kCUDA)), exact = torch::empty_like(whole);
  auto parts = drawn(way(whole), order);
  if (!all_given) parts[1].reset();
  const auto wanted = way(exact);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i].defined() ? wanted[i].copy_(parts[i]) : wanted[i].zero_();
  whole.fill_(7);
  if (!autopar::fused::join_parts(whole, way(whole), parts)) {
    CHECK(whole.eq(7).all().item<bool>());
    return false;
  }
  CHECK(torch::equal(whole, exact));
  const auto sums = autopar::fused::take_bias_gradient(whole);
  REQUIRE(sums.defined());
  const auto rows = exact.flatten(0, -2);
  const auto in_double = rows.to(at::kDouble).sum(0);
  CHECK(gpu_test::distance(sums.to(at::kDouble), in_double) <=
        1.5 * gpu_test::distance(rows.sum(0, false, at::kFloat).to(at::kDouble), in_double) + 1e-7);
  CHECK(autopar::fused::join_parts(whole, way(whole), parts));
  CHECK(torch::equal(autopar::fused::take_bias_gradient(whole), sums));
  return true;
}

TEST_CASE("join_parts: equals libtorch, with row sums as bias gradient", "[gpu][joined_parts]") {
  torch::manual_seed(13);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t width : {64, 128, 8}) {
      const std::int64_t samples = 2, length = 130, heads = 5;
      const std::vector<std::int64_t> sizes{samples, length, 3 * heads * width};
      const std::vector<Way> ways{
          [=](const Tensor& all) {
            return all.view({samples, length, 3, heads, width}).permute({2, 0, 3, 1, 4}).unbind(0);
          },
          [=](const Tensor& all) {
            return all.view({samples, length, heads, 3 * width}).transpose(1, 2).chunk(3, -1);
          },
      };
      for (const auto& way : ways) {
        CHECK(check(sizes, type, way, {0, 2, 1, 3}));  // as cuDNN's and flash attention's gradients lie
        CHECK(check(sizes, type, way, {0, 1, 2, 3}));
        CHECK(check(sizes, type, way, {2, 0, 1, 3}));
        CHECK(check(sizes, type, way, {0, 2, 1, 3}, false));
        CHECK_FALSE(check(sizes, type, way, {0, 1, 3, 2}));  // no packs
      }
    }
    const Way of_rows = [](const Tensor& all) { return all.chunk(3, -1); };
    CHECK(check({8192, 6144}, type, of_rows, {0, 1}));
    CHECK(check({3, 24}, type, of_rows, {0, 1}));
    CHECK_FALSE(check({64, 15}, type, of_rows, {0, 1}));
    CHECK_FALSE(check({64, 24}, type, of_rows, {1, 0}));
  }
}

}  // namespace gpu_joined_parts_test
