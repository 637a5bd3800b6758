#include "torch/engine/rounded_sums.hpp"

#include <catch_shim.hpp>
#include <rounded_sums_law.hpp>

#include <autopar/runtime/loopback.hpp>

namespace rounded_sums_test {

using namespace autopar;

TEST_CASE("rounded sums: bits are those of fp32 additions in rank order") {
  for (const int ranks : {1, 2, 3, 5})
    CHECK_NOTHROW(loopback::run(ranks, [](World& world) { rounded_sums_law::check(world, world.make_transport()); }));
}

TEST_CASE("rounded sums: only fp32 gradients are rounded, if asked for") {
  const BucketPolicy fp32, bf16{.reduce_dtype = ReduceDtype::kBf16};
  CHECK(engine::are_rounded(at::kFloat, bf16));
  CHECK_FALSE(engine::are_rounded(at::kFloat, fp32));
  for (const auto type : {at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kComplexFloat})
    CHECK_FALSE(engine::are_rounded(type, bf16));
}

}  // namespace rounded_sums_test
