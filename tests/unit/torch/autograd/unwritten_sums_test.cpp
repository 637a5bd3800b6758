#include "torch/autograd/unwritten_sums.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <catch_shim.hpp>

namespace unwritten_sums_test {

using autopar::autograd::UnwrittenSums;

TEST_CASE("UnwrittenSums: the first gradient is written, later ones are added") {
  UnwrittenSums unwritten;
  const auto flat = at::full({6}, NAN), sum = flat.narrow(0, 2, 3), gradient = at::ones({3});
  unwritten.add(sum);
  unwritten.add_to(sum, gradient);
  unwritten.add_to(sum, gradient);
  CHECK(sum.eq(2).all().item<bool>());
  CHECK(flat.isnan().sum().item<std::int64_t>() == 3);
  CHECK_FALSE(unwritten.take(sum));
}

TEST_CASE("UnwrittenSums: what is discarded or empty is nobody's") {
  UnwrittenSums unwritten;
  const auto sum = at::full({2}, NAN), none = at::empty({0});
  unwritten.add(sum);
  unwritten.add(none);
  CHECK_FALSE(unwritten.take(none));
  unwritten.discard(sum);
  unwritten.zero(sum);
  CHECK(sum.isnan().all().item<bool>());
  unwritten.add(sum);
  unwritten.zero(sum);
  CHECK(sum.eq(0).all().item<bool>());
  unwritten.zero(sum.fill_(1));
  CHECK(sum.eq(1).all().item<bool>());
}

}  // namespace unwritten_sums_test
