#include "torch/fused/vectorised_rows.hpp"

#include <cstdint>

#include <torch/torch.h>

#include <catch_shim.hpp>

namespace whole_packs_test {

using namespace autopar;
using at::Tensor;

/// In memory of its own, with zeros behind the last row.
Tensor kept(const Tensor& weight) {
  const auto memory = fused::empty_in_packs(weight, weight.scalar_type());
  memory.copy_(weight);
  return memory;
}

TEST_CASE("empty_in_packs: storage ends with zeroed full vectors", "[whole_packs]") {
  const auto memory = fused::empty_in_packs(at::ones({30, 5}), at::kBFloat16);
  CHECK(memory.sizes() == at::IntArrayRef({30, 5}));
  CHECK(memory.is_contiguous());
  CHECK(memory.storage().use_count() == 1);
  CHECK(memory.as_strided({2, 5}, {5, 1}, 30 * 5).count_nonzero().item<std::int64_t>() == 0);
  for (const auto& other : {at::ones({32, 5}), at::ones({30}), at::ones({5, 30}).t()}) {
    CHECK(fused::empty_in_packs(other, at::kHalf).storage().nbytes() == static_cast<std::size_t>(2 * other.numel()));
  }
}

TEST_CASE("linear_in_padded_rows: result and gradient equal linear's", "[whole_packs]") {
  torch::manual_seed(12);
  const auto x = torch::randn({3, 4, 6}, at::kDouble), bias = torch::randn({30}, at::kDouble);
  const auto drawn = torch::randn({30, 6}, at::kDouble);
  for (const auto& weight : {drawn, kept(drawn)}) {
    for (const auto& added : {Tensor(), bias}) {
      const auto logits = fused::linear_in_padded_rows(x, weight, added);
      CHECK(at::allclose(logits, at::linear(x, weight, added), 1e-13, 1e-13));
      const auto rows = logits.reshape({-1, 30});
      REQUIRE(fused::padding_behind_rows(rows) == 2);
      CHECK(rows.is_alias_of(logits));

      rows.copy_(torch::randn({12, 30}, at::kDouble));  // the gradient, as the cross entropy leaves it
      rows.as_strided({12, 2}, {32, 1}, 30).zero_();
      const auto dense = logits.contiguous();
      const auto exact = dense.reshape({-1, 30}).mm(drawn).view_as(x);
      CHECK(at::allclose(fused::gradient_through_padded_rows(logits, x, weight), exact, 1e-13, 1e-13));
      CHECK(at::allclose(fused::gradient_through_padded_rows(dense, x, weight), exact, 1e-13, 1e-13));
    }
  }
}

TEST_CASE("empty_like_rows: memory with zeros behind padded rows", "[whole_packs]") {
  const auto padded = fused::linear_in_padded_rows(at::ones({2, 4, 5}), at::ones({30, 5}), {});
  auto like = fused::empty_like_rows(padded);
  CHECK(like.sizes() == padded.sizes());
  CHECK(like.strides() == padded.strides());
  CHECK(fused::padding_behind_rows(like.view({8, 30})) == 2);
  like.fill_(3);
  CHECK(like.as_strided({8, 32}, {32, 1}).sum().item<double>() == 8 * 30 * 3);
  for (const auto& other : {at::ones({4, 30}), at::ones({4, 32}), at::ones({30}), at::ones({6, 4}).t(), at::ones({})})
    CHECK(fused::empty_like_rows(other).strides() == at::empty_like(other).strides());
}

TEST_CASE("padding_behind_rows: zero unless every row is padded", "[whole_packs]") {
  CHECK(fused::padding_behind_rows(at::ones({4, 30})) == 0);
  CHECK(fused::padding_behind_rows(at::ones({4, 32})) == 0);
  CHECK(fused::padding_behind_rows(at::ones({4, 40}).narrow(1, 0, 30)) == 0);
  CHECK(fused::padding_behind_rows(at::ones({4, 32}).narrow(1, 0, 30)) == 2);
  CHECK(fused::padding_behind_rows(at::empty_strided({4, 30}, {32, 1})) == 0);
  CHECK(fused::padding_behind_rows(at::ones({32, 4}).t().narrow(1, 0, 30)) == 0);
}

}  // namespace whole_packs_test
