#include "on_ranks.hpp"

#include <catch_shim.hpp>
#include <says.hpp>

#include <autopar/shard/collectives.hpp>
#include <autopar/shard/placed.hpp>

namespace ap = autopar;
using ap::Placed;
using ap::Placement;
using ap::Split;
using namespace shard_test;

TEST_CASE("Placed: converts from and to a plain tensor if replicated") {
  const Placed x = torch::ones({2, 3});
  REQUIRE(x.placement().is_replicate());
  const Tensor back = x;
  REQUIRE(back.is_same(x.local()));
  REQUIRE(torch::relu(x).sum().item<double>() == 6);
}

TEST_CASE("Placed: no plain tensor unless replicated, with a way out") {
  on_ranks(2, [](ap::World&, const ap::Groups& groups) {
    const auto& g = groups.tensor;
    check_says({"Shard(1)", "gather(x)", "x.map(f)"}, [&] {
      (void)torch::relu(Placed::shard(torch::ones({2, 3}), g, 1, Split({3, 3})));
    });
    check_says({"Partial()", "reduce(x)"}, [&] { (void)torch::relu(Placed::partial(torch::ones({2}), g)); });
    check_says({"slice of 3", "1+5"}, [&] { (void)Placed::shard(torch::ones({2, 3}), g, 1, Split({1, 5})); });
    check_says({"no dim 2"}, [&] { (void)Placed::shard(torch::ones({2, 3}), g, 2, Split({1, 5})); });
  });
}

TEST_CASE("Placed: element-wise operators and views keep the placement") {
  const DoublePrecision doubles;
  const auto whole = torch::randn({2, 3, 12});
  on_ranks(2, [&](ap::World&, const ap::Groups& groups) {
    const auto& g = groups.tensor;
    const auto x = ap::scatter(whole, g, -1, Split::even(12, 2, 4));  // 8+4
    const auto y = x.map([](const Tensor& t) { return at::gelu(t); }) * 2 + x;
    must_be(y.placement().is_shard(2) && y.split() == x.split(), "map");
    must_equal(ap::gather(y), at::gelu(whole) * 2 + whole, "element-wise");
    must_equal(ap::gather(x * x), whole * whole, "product");

    const auto rows = x.flatten(0, 1);
    must_be(rows.placement().is_shard(1), "flatten before");
    must_equal(ap::gather(rows), whole.flatten(0, 1), "rows");
    const auto heads = x.unflatten(-1, {3, 4});
    must_be(heads.placement().is_shard(2) && heads.split().lengths() == std::vector<std::int64_t>{2, 1}, "heads");
    must_equal(ap::gather(heads), whole.unflatten(2, {3, 4}), "heads");
    const auto moved = heads.transpose(1, 2);
    must_be(moved.placement().is_shard(1), "transpose");
    must_equal(ap::gather(moved), whole.unflatten(2, {3, 4}).transpose(1, 2), "transposed");
    must_equal(ap::gather(moved.transpose(1, 2).flatten(2, 3)), whole, "back");
    must_equal(ap::gather(x.unflatten(0, {1, 2})), whole.unflatten(0, {1, 2}), "a dim before");
    must_be(moved.sizes() == std::vector<std::int64_t>({2, 3, 3, 4}), "sizes are of the whole");
  });
}

TEST_CASE("Placed: operators that would lose the placement are refused") {
  on_ranks(2, [](ap::World&, const ap::Groups& groups) {
    const auto& g = groups.tensor;
    const auto x = Placed::shard(torch::ones({2, 3, 6}), g, 2, Split({6, 6}));
    const auto terms = Placed::partial(torch::ones({2, 3, 6}), g), all = Placed::replicate(torch::ones({2, 3, 12}), g);
    check_says({"element-wise", "gather(x)"}, [&] { (void)x.map([](const Tensor& t) { return t.sum(-1); }); });
    check_says({"not the sum of its functions", "reduce(x)"}, [&] { (void)terms.map(at::relu); });
    check_says({"would join slices"}, [&] { (void)x.flatten(1, 2); });
    check_says({"units of 4", ".unit(4)"}, [&] { (void)x.unflatten(2, {3, 4}); });
    check_says({"cannot add", "Shard(2)", "Replicate()"}, [&] { (void)(x + all); });
    check_says({"cannot multiply"}, [&] { (void)(all * terms); });
    check_says({"not the sum of its functions"}, [&] { (void)(terms * terms); });
    check_says({"cannot add"}, [&] {
      (void)(x + Placed::shard(torch::ones({2, 3, 6}), g, 2, Split({6, 6})).transpose(1, 2));
    });
    must_be((terms + terms).placement().is_partial() && (terms * 2).placement().is_partial(), "sums of terms");
  });
}
