#include <autopar/cost/links.hpp>

#include <catch_shim.hpp>

#include <random>

#include "two_nodes.hpp"

using namespace autopar;

namespace {

std::vector<Rank> ranks(std::initializer_list<int> ids) {
  std::vector<Rank> out;
  for (const int id : ids) out.push_back(Rank(id));
  return out;
}

}  // namespace

TEST_CASE("point_to_point: uses the innermost link that joins two ranks") {
  const Cluster cluster = test::two_nodes_of_four();
  CHECK(point_to_point(cluster, Bytes(1'000'000), Rank(0), Rank(3)).value() == Approx(1e-6 + 1e-5));
  CHECK(point_to_point(cluster, Bytes(1'000'000), Rank(3), Rank(4)).value() == Approx(1e-5 + 1e-4));
  CHECK(point_to_point(cluster, Bytes(1'000'000), Rank(5), Rank(5)) == Seconds(0));
}

TEST_CASE("all_reduce_time: a ring sends 2(n-1)/n of the bytes per link") {
  const Cluster cluster = test::two_nodes_of_four();
  const Bytes bytes(8'000'000);
  CHECK(all_reduce_time(cluster, bytes, ranks({2})) == Seconds(0));
  CHECK(all_reduce_time(cluster, bytes, ranks({0, 1, 2, 3})).value() ==
        Approx(6 * (1e-6 + 2e6 / 100e9)).epsilon(1e-12));
  CHECK(all_reduce_time(cluster, bytes, ranks({0, 4})).value() == Approx(2 * (10e-6 + 4e6 / 10e9)).epsilon(1e-12));
}

TEST_CASE("all_reduce_time: hierarchical across nodes") {
  const Cluster cluster = test::two_nodes_of_four();
  const Bytes bytes(80'000'000);
  const auto all = ranks({0, 1, 2, 3, 4, 5, 6, 7});
  const double inside = 6 * (1e-6 + 20e6 / 100e9);
  const double across = 2 * (10e-6 + 10e6 / 10e9);  // each of four shards is summed over two nodes
  CHECK(hierarchical_all_reduce(cluster, bytes, all).value() == Approx(inside + across).epsilon(1e-12));
  CHECK(flat_ring_all_reduce(cluster, bytes, all).value() == Approx(14 * (10e-6 + 10e6 / 10e9)).epsilon(1e-12));
  CHECK(all_reduce_time(cluster, bytes, all) == hierarchical_all_reduce(cluster, bytes, all));
}

TEST_CASE("all_reduce_time: never below its bound, however bucketed") {
  const Cluster cluster = test::two_nodes_of_four();
  std::mt19937 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<Rank> some;
    for (int r = 0; r < 8; ++r) {
      if (random() % 2 == 0) some.push_back(Rank(r));
    }
    if (some.size() < 2) continue;
    const Bytes bytes(static_cast<std::int64_t>(random() % 100'000'000));
    const Bytes part(bytes.value() / 3);
    const double bound = least_all_reduce_time(cluster, bytes, static_cast<int>(some.size())).value();
    CHECK(all_reduce_time(cluster, bytes, some).value() >= bound * (1 - 1e-12));
    CHECK((all_reduce_time(cluster, part, some) + all_reduce_time(cluster, bytes - part, some)).value() >=
          bound * (1 - 1e-12));
    CHECK(all_reduce_time(cluster, bytes + Bytes(1000), some) >= all_reduce_time(cluster, bytes, some));
  }
}

TEST_CASE("links: ranks that no level joins are named") {
  Cluster cluster = test::two_nodes_of_four();
  cluster.levels.pop_back();
  CHECK_THROWS_AS(point_to_point(cluster, Bytes(1), Rank(0), Rank(7)), InvalidArgument);
  CHECK_THROWS_AS(all_reduce_time(cluster, Bytes(1), ranks({0, 7})), InvalidArgument);
}
