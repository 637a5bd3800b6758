#include "on_ranks.hpp"

#include <catch_shim.hpp>
#include <says.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <autopar/shard/collectives.hpp>
#include <autopar/shard/group.hpp>

namespace ap = autopar;
using ap::Placed;
using ap::Placement;
using ap::Split;
using namespace shard_test;

TEST_CASE("init_groups: tensor groups are consecutive, replicas across") {
  on_ranks(
      4,
      [](ap::World& world, const ap::Groups& groups) {
        const int r = world.rank();
        must_be(groups.tensor.ranks() == std::vector<ap::Rank>{ap::Rank(r / 2 * 2), ap::Rank(r / 2 * 2 + 1)}, "tensor");
        must_be(groups.replicas.ranks() == std::vector<ap::Rank>{ap::Rank(r % 2), ap::Rank(r % 2 + 2)}, "replicas");
        must_be(groups.tensor.place() == r % 2 && groups.replicas.place() == r / 2, "places");
        must_be(groups.world.size() == 4 && groups.tensor.size() == 2, "sizes");
        must_be(!(groups.tensor == groups.replicas) && groups.tensor == ap::Group(groups.tensor), "identity");
      },
      2);
  on_ranks(
      2, [](ap::World&, const ap::Groups& groups) { must_be(groups.tensor.is_alone(), "a group of one is alone"); }, 1);
  REQUIRE(ap::Group().is_alone());
  REQUIRE(ap::Group().place() == 0);
}

TEST_CASE("init_groups: a size that does not tile the world is refused") {
  ap::loopback::run(4, [](ap::World& world) {
    for (const int size : {0, 3, 5, -1}) {
      check_says({"groups of " + std::to_string(size), "world of 4", "1, 2, 4"},
                 [&] { (void)ap::init_groups(world, size, torch::kCPU); });
    }
    check_says({"rank", "for groups of", "the same size on every rank"},
               [&] { (void)ap::init_groups(world, world.rank() == 2 ? 2 : 4, torch::kCPU); });
    (void)ap::init_groups(world, 2, torch::kCPU);
  });
}

TEST_CASE("Split: uneven, in units, empty") {
  REQUIRE(Split::even(21, 4).lengths() == std::vector<std::int64_t>{6, 5, 5, 5});
  REQUIRE(Split::even(2, 4).lengths() == std::vector<std::int64_t>{1, 1, 0, 0});
  REQUIRE(Split::even(12, 2, 4).lengths() == std::vector<std::int64_t>{8, 4});
  REQUIRE(Split::even(21, 4).begin(2) == 11);
  REQUIRE(Split::even(21, 4).total() == 21);
  REQUIRE_THROWS_AS(Split::even(21, 4, 2), ap::InvalidArgument);
  REQUIRE_THROWS_AS(Split({-1, 2}), ap::InvalidArgument);
}

TEST_CASE("Split: many elements in whole packs, few evenly", "[laws]") {
  REQUIRE(Split::in_packs(30'522, 2).lengths() == std::vector<std::int64_t>{15'264, 15'258});
  REQUIRE(Split::in_packs(50'304, 2) == Split::even(50'304, 2));
  REQUIRE(Split::in_packs(21, 4) == Split::even(21, 4));
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const auto parts = static_cast<int>(1 + random() % 9);
    const auto total = static_cast<std::int64_t>(random() % (trial % 2 == 0 ? 100 : 60'000));
    CAPTURE(total, parts);
    const auto split = Split::in_packs(total, parts);
    CHECK(split.total() == total);
    CHECK(split.parts() == parts);
    CHECK(split.longest() == Split::longest_in_packs(total, parts));
    CHECK(split.longest() - *std::ranges::min_element(split.lengths()) < 32);
    if (total < 4096 * parts) {
      CHECK(split == Split::even(total, parts));
      continue;
    }
    for (int place = 0; place + 1 < parts; ++place) CHECK(split.length(place) % 16 == 0);
  }
}

namespace {
/// Forward and gradient of every move, of a tensor of this size along `dim`.
void check_moves(int ranks, std::vector<std::int64_t> sizes, int dim) {
  const DoublePrecision doubles;
  torch::manual_seed(5);
  const auto whole = torch::randn(sizes), terms = torch::randn([&] {
                                            auto all = sizes;
                                            all.insert(all.begin(), ranks);
                                            return all;
                                          }());
  const auto weights = torch::randn_like(terms);
  on_ranks(ranks, [&](ap::World& world, const ap::Groups& groups) {
    const auto& g = groups.tensor;
    const auto mine = terms[world.rank()], weight = weights[world.rank()];
    const auto sum_of_weights = weights.sum(0);

    auto x = leaf(whole);
    (Tensor(ap::copy(x, g)) * weight).sum().backward();
    must_equal(x.grad(), sum_of_weights, "copy: sum of the ranks' gradients");

    x = leaf(mine);
    Tensor y = ap::reduce(Placed::partial(x, g));
    must_equal(y, terms.sum(0), "reduce");
    (y * weights[0]).sum().backward();
    must_equal(x.grad(), weights[0], "reduce: the gradient as it is");

    x = leaf(part_of(whole, g, dim));
    y = ap::gather(Placed::shard(x, g, dim));
    must_equal(y, whole, "gather");
    (y * weights[0]).sum().backward();
    must_equal(x.grad(), part_of(weights[0], g, dim), "gather: the slice of a replicated gradient");

    x = leaf(part_of(whole, g, dim));
    y = ap::gather(Placed::shard(x, g, dim), Placement::partial());
    (y * weight).sum().backward();
    must_equal(x.grad(), part_of(sum_of_weights, g, dim), "gather: the slice of the sum of partial gradients");

    x = leaf(whole);
    auto z = ap::scatter(x, g, dim);
    must_equal(z.local(), part_of(whole, g, dim), "scatter");
    (z.local() * part_of(weights[0], g, dim)).sum().backward();
    must_equal(x.grad(), weights[0], "scatter: all slices of the gradient");

    x = leaf(mine);
    z = ap::reduce_scatter(Placed::partial(x, g), dim);
    must_equal(z.local(), part_of(terms.sum(0), g, dim), "reduce_scatter");
    (z.local() * part_of(weights[0], g, dim)).sum().backward();
    must_equal(x.grad(), weights[0], "reduce_scatter: all slices of the gradient");
  });
}
}  // namespace

TEST_CASE("collectives: values and gradients along any dim and split") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    check_moves(ranks, {8, 3}, 0);
    check_moves(ranks, {3, 7}, 1);
    check_moves(ranks, {2, 5, 3}, 1);
    check_moves(ranks, {2, 5, 4}, 1);  // in words of 16 bytes
    check_moves(ranks, {3, 8}, 1);
    check_moves(ranks, {2, 4}, 0);  // some without rows
    check_moves(ranks, {1}, 0);
  }
}

TEST_CASE("collectives: slices may have any lengths") {
  const DoublePrecision doubles;
  on_ranks(3, [](ap::World& world, const ap::Groups& groups) {
    const auto x = Placed::shard(torch::full({world.rank() * 2, 2}, world.rank()), groups.tensor, 0);
    must_be(x.size(0) == 6 && x.split().lengths() == std::vector<std::int64_t>{0, 2, 4}, "lengths");
    const Tensor all = ap::gather(x);
    must_equal(all.select(1, 0), torch::tensor({1., 1., 2., 2., 2., 2.}), "gather");
  });
}

TEST_CASE("collectives: results and views can be written in place") {
  on_ranks(2, [](ap::World&, const ap::Groups& groups) {
    const auto check = [](const std::string& what, const Tensor& x, const Tensor& result) {
      result.view({-1}).mul_(3.0);
      result.sum().backward();
      must_equal(x.grad(), torch::full_like(x, 3.0), what);
    };
    const auto x = leaf(torch::ones({2, 3})), y = leaf(torch::ones({2, 3}));
    check("reduce_scatter", x, reduce_scatter(Placed::partial(x, groups.world), 0).local());
    check("gather", y, gather(Placed::shard(y, groups.world, 0)).local());
  });
}

TEST_CASE("collectives: wrong placement or group, create_graph refused") {
  const DoublePrecision doubles;
  on_ranks(
      4,
      [](ap::World&, const ap::Groups& groups) {
        const auto& g = groups.tensor;
        const auto shard = Placed::shard(torch::ones({2, 2}), g, 0), terms = Placed::partial(torch::ones({2}), g);
        const auto all = Placed::replicate(torch::ones({4}), g);
        check_says({"copy takes", "Shard(0)", "gather(x)"}, [&] { (void)ap::copy(shard, g); });
        check_says({"reduce takes", "Shard(0)"}, [&] { (void)ap::reduce(shard); });
        check_says({"gather takes", "Partial()", "reduce(x)"}, [&] { (void)ap::gather(terms); });
        check_says({"scatter takes", "Partial()"}, [&] { (void)ap::scatter(terms, g, 0); });
        check_says({"reduce_scatter takes", "Replicate()"}, [&] { (void)ap::reduce_scatter(all, 0); });
        check_says({"another group"}, [&] { (void)ap::copy(all, groups.replicas); });
        check_says({"split", "4 elements"}, [&] { (void)ap::scatter(all, g, 0, Split({1, 2})); });

        const auto x = leaf(torch::ones({2}));
        const Tensor y = ap::copy(x, g);
        check_says({"create_graph"}, [&] { torch::autograd::grad({y.sum()}, {x}, {}, true, true); });
      },
      2);
}
