#include "on_ranks.hpp"

#include <catch_shim.hpp>
#include <says.hpp>

#include <autopar/shard/collectives.hpp>
#include <autopar/shard/embedding.hpp>
#include <autopar/shard/linear.hpp>

namespace ap = autopar;
namespace nn = torch::nn;
using ap::Placed;
using ap::Split;
using namespace shard_test;

namespace {

ap::ParallelLinear cut(const nn::Linear& dense, int dim, const ap::Group& group, std::int64_t unit = 1) {
  return ap::ParallelLinear(*dense, dim, group, unit);
}

void check_gradients(const ap::ParallelLinear& layer, const nn::Linear& dense, const std::string& what) {
  const auto& g = layer->options.group();
  const bool is_column = *layer->options.dim() != 0;
  const auto split = ap::Split::even(dense->weight.size(is_column ? 0 : 1), g.size());
  must_equal(layer->weight.grad(), part_of(dense->weight.grad(), g, is_column ? 0 : 1, split), what + ": weight");
  if (!dense->bias.defined()) return;
  must_equal(layer->bias.grad(), is_column ? part_of(dense->bias.grad(), g, 0, split) : dense->bias.grad(),
             what + ": bias");
}

}  // namespace

TEST_CASE("ParallelLinear: row, column and pairs equal dense layers") {
  const DoublePrecision doubles;
  torch::manual_seed(7);
  struct Sizes {
    int in, hidden, out;
  };
  for (const auto [in, hidden, out] : {Sizes{4, 8, 4}, Sizes{5, 7, 3}, Sizes{3, 2, 5}, Sizes{1, 1, 1}}) {
    for (const bool bias : {true, false}) {
      nn::Linear first(nn::LinearOptions(in, hidden).bias(bias)), second(nn::LinearOptions(hidden, out).bias(bias));
      const auto samples = torch::randn({3, 2, in}), weights = torch::randn({3, 2, out});
      const auto x_dense = leaf(samples);
      (second(at::gelu(first(x_dense))) * weights).sum().backward();
      const auto wanted = second(at::gelu(first(samples))).detach();
      const auto gelu = [](const Tensor& t) { return at::gelu(t); };
      for (const int ranks : {1, 2, 3, 4}) {
        on_ranks(ranks, [&](ap::World&, const ap::Groups& groups) {
          const auto& g = groups.tensor;
          {
            auto a = cut(first, 1, g), b = cut(second, 0, g);  // Megatron's pair: one collective a pass
            const auto x = leaf(samples);
            const auto h = a(x);
            must_be(g.is_alone() || h.placement().is_shard(2), "a column gives slices");
            const Tensor y = b(h.map(gelu));
            must_equal(y, wanted, "column, row");
            (y * weights).sum().backward();
            must_equal(x.grad(), x_dense.grad(), "column, row: input");
            check_gradients(a, first, "column");
            check_gradients(b, second, "row");
          }
          {
            auto a = cut(first, 0, g), b = cut(second, -1, g);  // input scattered, output gathered
            const auto x = leaf(samples);
            const Tensor y = ap::gather(b(a(x).map(gelu)));
            must_equal(y, wanted, "row, column");
            (y * weights).sum().backward();
            must_equal(x.grad(), x_dense.grad(), "row, column: input");
            check_gradients(a, first, "scattered row");
            check_gradients(b, second, "gathered column");
          }
          {
            auto a = cut(first, 1, g);  // each rank's own samples
            const auto x = leaf(part_of(samples, g, 0));
            const Tensor h = ap::gather(a(Placed::shard(x, g, 0)));
            const Tensor y = second(at::gelu(h)).mul(weights).sum();
            const auto gradients = torch::autograd::grad({y}, {x});
            must_equal(gradients[0], part_of(x_dense.grad(), g, 0), "own samples: reduce-scatter of the gradient");
          }
        });
      }
    }
  }
}

TEST_CASE("ParallelLinear: without group or dim it is torch::nn::Linear") {
  torch::manual_seed(3);
  nn::Linear dense(5, 3);
  const auto next = torch::rand({4});
  torch::manual_seed(3);
  ap::ParallelLinear own(ap::ParallelLinearOptions(5, 3).dim(1));
  REQUIRE(torch::equal(own->weight, dense->weight));
  REQUIRE(torch::equal(own->bias, dense->bias));
  REQUIRE(torch::equal(torch::rand({4}), next));
  const Tensor y = own(torch::ones({2, 5}));
  REQUIRE(torch::equal(y, dense(torch::ones({2, 5}))));
  REQUIRE(own->named_parameters().keys() == dense->named_parameters().keys());
  REQUIRE(own->shards().empty());
}

TEST_CASE("ParallelLinear: initial values are slices of the dense ones") {
  for (const bool large : {false, true}) {  // of several blocks
    const std::int64_t in = large ? 700 : 5, out = large ? 1003 : 7;
    torch::manual_seed(11);
    nn::Linear dense(in, out);
    const auto next = torch::rand({4});
    for (const int dim : {0, 1}) {
      torch::manual_seed(11);
      on_ranks(3, [&](ap::World&, const ap::Groups& groups) {
        ap::ParallelLinear layer(ap::ParallelLinearOptions(in, out).dim(dim).group(groups.tensor));
        const int cut_dim = dim == 0 ? 1 : 0;
        must_be(torch::equal(layer->weight, part_of(dense->weight, groups.tensor, cut_dim)), "weight");
        must_be(torch::equal(layer->bias, dim == 0 ? dense->bias : part_of(dense->bias, groups.tensor, 0)), "bias");
      });
      REQUIRE(torch::equal(torch::rand({4}), next));
    }
  }
}

// TorchShard, fault 6: the bias of a row was drawn by each rank for itself.
TEST_CASE("ParallelLinear: a row-parallel bias is equal and added once") {
  const DoublePrecision doubles;
  torch::manual_seed(1);
  on_ranks(3, [](ap::World&, const ap::Groups& groups) {
    ap::ParallelLinear row(ap::ParallelLinearOptions(4, 2).dim(0).group(groups.tensor));
    const Tensor biases = ap::gather(Placed::shard(row->bias.detach().unsqueeze(0), groups.tensor, 0));
    must_equal(biases, row->bias.detach().expand({3, 2}), "bias");
    must_equal(row(torch::zeros({1, 4})).local(), row->bias.detach().unsqueeze(0), "once");
  });
}

TEST_CASE("ParallelLinear: other placements are refused, with a way out") {
  const DoublePrecision doubles;
  on_ranks(
      4,
      [](ap::World&, const ap::Groups& groups) {
        const auto& g = groups.tensor;
        const auto make = [&](std::optional<int> dim) {
          return ap::ParallelLinear(ap::ParallelLinearOptions(6, 4).dim(dim).group(g));
        };
        auto column = make(1), row = make(0), whole = make(std::nullopt);
        const auto slice = Placed::shard(torch::ones({2, 3}), g, 1, Split({3, 3}));
        const auto terms = Placed::partial(torch::ones({2, 6}), g);
        check_says({"column", "Shard(1)", "dim 0", "gather(x)"}, [&] { (void)column(slice); });
        check_says({"column", "Partial()", "reduce(x)"}, [&] { (void)column(terms); });
        check_says({"row", "Partial()", "reduce(x)"}, [&] { (void)row(terms); });
        check_says({"row", "last dim"}, [&] { (void)row(Placed::shard(torch::ones({1, 6}), g, 0, Split({1, 1}))); });
        const auto uneven = g.place() == 0 ? torch::ones({2, 4}) : torch::ones({2, 2});
        check_says({"3+3", "same unit"}, [&] { (void)row(Placed::shard(uneven, g, 1, Split({4, 2}))); });
        check_says({"without a dim", "gather(x)"}, [&] { (void)whole(slice); });
        check_says({"6 features"}, [&] { (void)column(torch::ones({2, 5})); });
        check_says({"another group"}, [&] { (void)column(Placed::replicate(torch::ones({2, 6}), groups.replicas)); });
        check_says({"dim 2"}, [&] { (void)make(2); });
        check_says({"whole units of 4"},
                   [&] { ap::ParallelLinear(ap::ParallelLinearOptions(6, 6).dim(1).group(g).unit(4)); });
        check_says({"cut already"}, [&] { column->shard(0, g); });
      },
      2);
}

TEST_CASE("ParallelEmbedding: equals the dense one, padding included") {
  const DoublePrecision doubles;
  for (const auto padding :
       {std::optional<std::int64_t>(), std::optional<std::int64_t>(2), std::optional<std::int64_t>(-1)}) {
    for (const int words : {8, 5, 2}) {
      if (padding == 2 && words == 2) continue;
      torch::manual_seed(13);
      nn::Embedding dense(nn::EmbeddingOptions(words, 6).padding_idx(padding));
      const auto indices = torch::randint(words, {3, 4}), weights = torch::randn({3, 4, 6});
      const auto wanted = dense(indices);
      (wanted * weights).sum().backward();
      for (const int ranks : {1, 2, 3, 4}) {
        for (const int dim : {0, 1}) {
          torch::manual_seed(13);
          on_ranks(ranks, [&](ap::World&, const ap::Groups& groups) {
            const auto& g = groups.tensor;
            ap::ParallelEmbedding own(ap::ParallelEmbeddingOptions(words, 6).padding_idx(padding).dim(dim).group(g));
            must_equal(own->weight, part_of(dense->weight, g, dim), "start", 0);
            const auto y = own(indices);
            const Tensor whole = y.placement().is_shard() ? ap::gather(y) : y;
            must_equal(whole, wanted, "vectors");
            (whole * weights).sum().backward();
            must_equal(own->weight.grad(), part_of(dense->weight.grad(), g, dim), "gradient");
            if (g.is_alone()) return;
            check_says({"position 1", "none of", "words"}, [&] { (void)own(torch::tensor({0, words})); });
          });
        }
      }
    }
  }
}

TEST_CASE("ParallelEmbedding: initial values are slices of the dense") {
  for (const std::int64_t features : {300, 301}) {
    torch::manual_seed(71);
    nn::Embedding dense(2001, features);
    for (const int dim : {0, 1}) {
      torch::manual_seed(71);
      on_ranks(2, [&](ap::World&, const ap::Groups& groups) {
        ap::ParallelEmbedding own(ap::ParallelEmbeddingOptions(2001, features).dim(dim).group(groups.tensor));
        must_be(torch::equal(own->weight, part_of(dense->weight, groups.tensor, dim)), "start");
      });
    }
  }
}
