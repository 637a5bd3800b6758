#include <autopar/schedule/mesh.hpp>

#include <set>
#include <string>
#include <vector>

#include <catch_shim.hpp>

using namespace autopar;

TEST_CASE("Mesh: groups of each axis partition it and meet in one rank", "[schedule]") {
  for (int replicas = 1; replicas <= 4; ++replicas) {
    for (int tensor = 1; tensor <= 4; ++tensor) {
      CAPTURE(replicas, tensor);
      std::vector<Rank> ranks;
      for (int i = 0; i < replicas * tensor; ++i) ranks.push_back(Rank(100 - 30 * (i / tensor) + 3 * (i % tensor)));
      const Mesh mesh(ranks, tensor);
      CHECK(mesh.replicas() == replicas);
      CHECK(mesh.tensor() == tensor);
      std::set<Rank> seen;
      for (int q = 0; q < replicas; ++q) {
        const auto group = mesh.tensor_group(q);
        REQUIRE(group.size() == static_cast<std::size_t>(tensor));
        for (int t = 0; t < tensor; ++t) {
          CHECK(group[static_cast<std::size_t>(t)] == mesh.rank(q, t));
          CHECK(mesh.replica_group(t).at(static_cast<std::size_t>(q)) == mesh.rank(q, t));
          CHECK(mesh.replica_of(mesh.rank(q, t)) == q);
          CHECK(mesh.shard_of(mesh.rank(q, t)) == t);
          seen.insert(mesh.rank(q, t));
        }
      }
      CHECK(seen == std::set<Rank>(ranks.begin(), ranks.end()));
      CHECK_FALSE(mesh.contains(Rank(101)));
      CHECK_FALSE(mesh.replica_of(Rank(101)));
      CHECK_FALSE(mesh.shard_of(Rank(101)));
    }
  }
}

TEST_CASE("Mesh: incomplete replicas and unordered shards are refused", "[schedule]") {
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(Mesh({Rank(0), Rank(1), Rank(2)}, 2),
                    ContainsSubstring("3 ranks are no whole number of replicas of 2"));
  CHECK_THROWS_AS(Mesh({Rank(0)}, 0), InvalidArgument);
  CHECK_THROWS_WITH(Mesh({Rank(0), Rank(1), Rank(5), Rank(3)}, 2), ContainsSubstring("rank 3 follows rank 5"));
  CHECK(Mesh({Rank(2), Rank(3), Rank(0), Rank(1)}, 2).rank(1, 0) == Rank(0));
  CHECK(Mesh({Rank(0), Rank(1)}, 1) == Mesh{Rank(0), Rank(1)});
  CHECK_FALSE(Mesh({Rank(0), Rank(1)}, 2) == Mesh{Rank(0), Rank(1)});
}
