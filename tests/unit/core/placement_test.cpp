#include <autopar/core/placement.hpp>
#include <catch_shim.hpp>

using namespace autopar;

TEST_CASE("Placement: DTensor's three kinds, printed as there") {
  CHECK(to_string(Placement::replicate()) == "Replicate()");
  CHECK(to_string(Placement::shard(2)) == "Shard(2)");
  CHECK(to_string(Placement::partial()) == "Partial()");

  CHECK(Placement::shard(0) == Placement::shard(0));
  CHECK(Placement::shard(0) != Placement::shard(1));
  CHECK(Placement::shard(0) != Placement::replicate());
  CHECK(Placement::partial() != Placement::replicate());

  CHECK(Placement::shard(1).is_shard(1));
  CHECK_FALSE(Placement::shard(1).is_shard(0));
  CHECK_FALSE(Placement::replicate().is_shard());
  CHECK(Placement::shard(3).dim() == 3);
}

TEST_CASE("Placement: only shards have a dim, counted from the front") {
  CHECK_THROWS_AS(Placement::shard(-1), InternalError);
  CHECK_THROWS_AS(Placement::replicate().dim(), InternalError);
  CHECK_THROWS_AS(Placement::partial().dim(), InternalError);
}
