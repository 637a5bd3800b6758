#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>

#include <catch_shim.hpp>

#include <autopar/core/error.hpp>

#include "torch/interpret/seeded_draws.hpp"

namespace autopar {

TEST_CASE("RecordedSeeds: one tensor per RNG site holds the call's seed", "[torch]") {
  const interpret::RngSite first{OpId(3), 0}, second{OpId(3), 4}, alike{OpId(5)};
  const auto seeds = std::make_shared<interpret::RecordedSeeds>(c10::Device(c10::kCPU), 3);
  interpret::RngKey key{11, 7, seeds};

  CHECK_FALSE(interpret::seed_of(key, first).place.defined());
  CHECK(interpret::seed_of(key, first).number == interpret::philox_seed(key, first));

  seeds->set_recorded(true);
  const auto place = interpret::seed_of(key, first).place, other = interpret::seed_of(key, second).place,
             last = interpret::seed_of(key, alike).place;
  CHECK(interpret::seed_of(key, first).place.data_ptr() == place.data_ptr());
  CHECK(place.data_ptr() != other.data_ptr());
  CHECK_THROWS_AS(seeds->place({OpId(6), 0}), Error);

  const auto version = place._version();
  for (const std::uint64_t call : {7, 8}) {
    const interpret::RngKey now{11, call};
    seeds->set(now);
    CHECK(place._version() == version);  // at which a backward has saved it
    CHECK(static_cast<std::uint64_t>(place[0].item<std::int64_t>()) == interpret::philox_seed(now, first));
    CHECK(static_cast<std::uint64_t>(other[0].item<std::int64_t>()) == interpret::philox_seed(now, second));
    CHECK(static_cast<std::uint64_t>(last[0].item<std::int64_t>()) == interpret::philox_seed(now, alike));
    CHECK(place[1].item<std::int64_t>() == 0);
  }

  seeds->set_recorded(false);
  CHECK(interpret::seed_of(key, first).number == interpret::philox_seed(key, first));
}

TEST_CASE("DefaultGeneratorGuard: seeds the generator within its scope", "[torch]") {
  const c10::Device cpu(c10::kCPU);
  at::Tensor guarded;
  const auto before = at::rand({4});
  {
    const interpret::DefaultGeneratorGuard guard(cpu, {5});
    guarded = at::rand({4});
  }
  CHECK(at::equal(guarded, at::rand({4}, fused::make_generator(cpu, {5}))));
  CHECK_FALSE(at::equal(before, at::rand({4})));
}

}  // namespace autopar
