#include <torch/torch.h>

#include <catch_shim.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "unit/torch/capture/models.hpp"

#include "torch/algebra/batch_algebra.hpp"
#include "torch/replay/replay.hpp"
#include "torch/rewrite/linear_fold.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

namespace autopar::test {
namespace shard_rules {

using torch::Tensor;

/// What the shard at `place` has of a tensor.
Tensor slice_of(const Tensor& whole, const UnitSlices& slices, std::int64_t batch, int shards, int place) {
  const auto split = slices.split(shards);
  return whole.unflatten(slices.dim, {slices.outer.at(batch), slices.units, slices.inner})
      .narrow(slices.dim + 1, split.begin(place), split.length(place))
      .flatten(slices.dim, slices.dim + 2)
      .contiguous();
}

/// A layer whose outputs are cut, and what a program makes of them.
struct Program : TestModel {
  std::int64_t inputs, outputs;
  std::function<Tensor(const Tensor&)> behind;
  torch::nn::Linear layer{nullptr};
  Program(std::int64_t in, std::int64_t out, std::function<Tensor(const Tensor&)> then)
      : inputs(in), outputs(out), behind(std::move(then)) {
    layer = register_module("layer", torch::nn::Linear(in, out));
    to(torch::kDouble);
  }
  Tensors run(const Tensors& in) override { return {behind(layer(in[0]))}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 5, inputs}, torch::kDouble)}; }
};

/// Runs the program on every shard and compares what each has with its slice of the whole.
/// @return whether the result is in slices; nothing was exchanged, so else there was no rule
bool runs_in_slices(Program& program, const UnitSlices& outputs, int shards) {
  constexpr std::int64_t kBatch = 3;
  const auto in = program.arguments(kBatch);
  const auto graph =
      fold_linear(capture(program, specs(in), [&](const Tensors& arguments) { return program.run(arguments); }));
  LeafSlices leaves;
  for (const auto& [name, value] : graph.parameters) {
    if (name != "layer.weight" && name != "layer.bias") continue;
    leaves[value] = outputs;
  }
  ShardTyping typing(graph, [](OpId) { return true; });
  const auto layout = typing.run(leaves, [](ValueId) { return false; });
  const auto result = graph.outputs.front();
  const bool only_leaves = std::ranges::all_of(layout.before, [](const auto& item) {
    return std::ranges::all_of(item.second, [](const auto& move) { return move.move == ShardMove::kCopy; });
  });
  if (!only_leaves || !layout.layouts[result.index()].is_sharded() || !layout.sums.empty()) return false;
  const auto run = [&](const OpGraph& of, const std::function<Tensor(ValueId, const Tensor&)>& own) {
    Replayer replayer(of, all_ops(of), {result}, at::kCPU);
    auto environment = replayer.environment();
    bind_state(of, program, environment);
    for (const auto& [name, value] : of.parameters) {
      environment[value.index()] = own(value, environment[value.index()].detach());
    }
    environment[of.inputs.front().index()] = in[0];
    replayer.run(environment, {kBatch, kBatch});
    return environment[result.index()];
  };
  const auto whole = run(graph, [](ValueId, const Tensor& value) { return value; });
  const auto& slices = layout.layouts[result.index()].slices();
  const auto sharded = insert_moves(graph, {{shards, layout}});
  for (int place = 0; place < shards; ++place) {
    const auto mine = run(on_shard(sharded, {place}), [&](ValueId value, const Tensor& parameter) {
      const auto found = layout.leaves.find(value);
      return found == layout.leaves.end() ? parameter : slice_of(parameter, found->second, kBatch, shards, place);
    });
    const auto wanted = slice_of(whole, slices, kBatch, shards, place);
    REQUIRE(mine.sizes() == wanted.sizes());
    REQUIRE(torch::allclose(mine, wanted, 1e-12, 1e-12));
  }
  return true;
}

const UnitSlices kHidden{0, {0, 1}, 12, 1};  // single hidden units
const UnitSlices kHeads{0, {0, 3}, 4, 2};    // three projections of four heads of two

}  // namespace shard_rules

TEST_CASE("operators on slices give slices of what they give on the whole", "[tensor_parallel]") {
  using namespace shard_rules;
  torch::manual_seed(3);
  const std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>> pointwise{
      {"gelu", [](const Tensor& x) { return torch::gelu(x); }},
      {"in place", [](const Tensor& x) { return torch::relu(x).add_(1).mul_(2); }},
      {"with itself", [](const Tensor& x) { return x * torch::sigmoid(x); }},
      {"clone and cast", [](const Tensor& x) { return x.clone().to(torch::kFloat).to(torch::kDouble); }},
      {"filled", [](const Tensor& x) { return x.masked_fill(x < 0, 0.5) + torch::zeros_like(x); }},
      {"along other dims", [](const Tensor& x) { return torch::softmax(x, 1).cumsum(1) + x.sum(1, true); }},
      {"moved",
       [](const Tensor& x) {
         return x.transpose(1, 2).unsqueeze(0).squeeze(0).permute({1, 0, 2});
       }},
      {"sliced elsewhere",
       [](const Tensor& x) {
         return torch::cat({x.slice(1, 0, 2), x.slice(1, 2)}, 1);
       }},
      {"selected", [](const Tensor& x) { return torch::stack(x.unbind(1), 1).select(1, 3); }},
      {"expanded",
       [](const Tensor& x) {
         return x.unsqueeze(1).expand({-1, 7, -1, -1});
       }},
      {"flattened with others", [](const Tensor& x) { return x.flatten(0, 1); }},
  };
  for (const auto& [name, behind] : pointwise) {
    for (const int shards : {2, 4, 5}) {
      INFO(name << ", " << shards << " shards");
      Program program(4, 12, behind);
      CHECK(runs_in_slices(program, kHidden, shards));
    }
  }
  const auto parts = [](const Tensor& x) { return x.view({x.size(0), 5, 3, 4, 2}).permute({2, 0, 3, 1, 4}).unbind(0); };
  const auto chunks = [](const Tensor& x) {
    auto pieces = x.chunk(3, -1);
    for (auto& piece : pieces) piece = piece.view({x.size(0), 5, 4, 2}).transpose(1, 2);
    return pieces;
  };
  const auto torch_order = [](const Tensor& x) {  // [time, samples * heads, 2], as torch::nn::MultiheadAttention
    auto pieces = x.transpose(0, 1).split(8, -1);
    for (auto& piece : pieces) piece = piece.reshape({5, x.size(0) * 4, 2}).transpose(0, 1);
    return pieces;
  };
  const std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>> attention{
      {"fused",
       [&](const Tensor& x) {
         const auto p = parts(x);
         return at::scaled_dot_product_attention(p[0], p[1], p[2], {}, 0.0, true).transpose(1, 2).flatten(2);
       }},
      {"written out",
       [&](const Tensor& x) {
         const auto p = chunks(x);
         const auto scores = (torch::matmul(p[0], p[1].transpose(-2, -1)) / std::sqrt(2.0)).softmax(-1);
         return torch::matmul(scores, p[2]).transpose(1, 2).reshape({x.size(0), 5, 8});
       }},
      {"einsum",
       [&](const Tensor& x) {
         const auto p = chunks(x);
         const auto scores = torch::einsum("bhid,bhjd->bhij", {p[0], p[1]}).softmax(-1);
         return torch::einsum("bhij,bhjd->bihd", {scores, p[2]}).flatten(2);
       }},
      {"batched products",
       [&](const Tensor& x) {
         const auto p = torch_order(x);
         const auto scores = torch::bmm(p[0], p[1].transpose(1, 2)).softmax(-1);
         return torch::bmm(scores, p[2]).transpose(0, 1).reshape({5, x.size(0), 8});
       }},
  };
  for (const auto& [name, behind] : attention) {
    for (const int shards : {2, 3, 4}) {
      INFO(name << ", " << shards << " shards");
      Program program(4, 24, behind);
      CHECK(runs_in_slices(program, kHeads, shards));
    }
  }
}

TEST_CASE("what would mix slices has no rule", "[tensor_parallel]") {
  using namespace shard_rules;
  const std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>> mixing{
      {"softmax over units", [](const Tensor& x) { return x.softmax(-1); }},
      {"sorted units", [](const Tensor& x) { return std::get<0>(x.sort(-1)); }},
      {"mean of units", [](const Tensor& x) { return x - x.mean(-1, true); }},
      {"half of the units", [](const Tensor& x) { return x.slice(-1, 0, 6); }},
      {"units beside others",
       [](const Tensor& x) {
         return torch::cat({x, x}, -1);
       }},
      {"flipped units", [](const Tensor& x) { return x.flip(-1); }},
      {"gated by others", [](const Tensor& x) { return torch::glu(x, -1); }},
      {"in copies",
       [](const Tensor& x) {
         return x.repeat({1, 1, 2});
       }},
  };
  for (const auto& [name, behind] : mixing) {
    INFO(name);
    Program program(4, 12, behind);
    CHECK_FALSE(runs_in_slices(program, kHidden, 2));
  }
}

TEST_CASE("slices survive a change of dims exactly where units stay whole", "[tensor_parallel][laws]") {
  using namespace shard_rules;
  std::mt19937 random(11);
  const auto pick = [&](std::vector<std::int64_t> from) {
    return from[std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(random)];
  };
  int kept = 0;
  for (int round = 0; round < 2000; ++round) {
    // Factors of the elements; `from` and `to` join neighbours, the units are one of the factors of a dim of `from`.
    std::vector<std::int64_t> factors;
    for (int i = 0; i < 6; ++i) factors.push_back(pick({1, 2, 3, 4}));
    const auto joined = [&] {
      std::vector<std::int64_t> sizes{factors.front()};
      std::vector<std::size_t> dim_of{0};
      for (std::size_t i = 1; i < factors.size(); ++i) {
        if (pick({0, 1}) == 0)
          sizes.back() *= factors[i];
        else
          sizes.push_back(factors[i]);
        dim_of.push_back(sizes.size() - 1);
      }
      return std::pair(sizes, dim_of);
    };
    const auto [from, dim_of] = joined();
    const auto to = joined().first;
    const auto unit = static_cast<std::size_t>(pick({0, 1, 2, 3, 4, 5}));
    if (factors[unit] < 2) continue;
    UnitSlices slices{static_cast<std::int32_t>(dim_of[unit]), {0, 1}, factors[unit], 1};
    for (std::size_t i = 0; i < factors.size(); ++i) {
      if (dim_of[i] != dim_of[unit]) continue;
      if (i < unit) slices.outer.fixed *= factors[i];
      if (i > unit) slices.inner *= factors[i];
    }
    const auto exprs = [](const std::vector<std::int64_t>& sizes) {
      std::vector<SizeExpr> out;
      for (const auto size : sizes) out.push_back({0, size});
      return out;
    };
    const auto after = reshaped(slices, exprs(from), exprs(to));
    REQUIRE(after);  // joining and parting whole factors never tears a unit
    ++kept;
    std::int64_t elements = 1;
    for (const auto size : from) elements *= size;
    const auto whole = torch::arange(elements).view(from);
    for (int place = 0; place < 2; ++place) {
      const auto mine = slice_of(whole, slices, 1, 2, place), wanted = slice_of(whole.view(to), *after, 1, 2, place);
      REQUIRE(torch::equal(mine.flatten(), wanted.flatten()));
    }
  }
  CHECK(kept > 1000);
}

}  // namespace autopar::test
