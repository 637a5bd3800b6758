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

#include "capture/algebra/batch_algebra.hpp"
#include "capture/replay/replay.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/passes/linear_fold.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

namespace autopar::test {
namespace shard_rules {

using torch::Tensor;

/// What the shard at `place` has of a tensor.
Tensor slice_of(const Tensor& whole, const UnitSlices& slices, std::int64_t batch, int shards, int place) {
  const auto split = slices.split(shards);
  std::vector<Tensor> parts;
  std::int64_t at = 0;
  const auto blocks = whole.unflatten(slices.dim, {slices.outer.at(batch), slices.units * slices.width()});
  for (const auto part : slices.inner) {
    parts.push_back(blocks.narrow(slices.dim + 1, at + split.begin(place) * part, split.length(place) * part));
    at += slices.units * part;
  }
  return torch::cat(parts, slices.dim + 1).flatten(slices.dim, slices.dim + 1).contiguous();
}

/// A layer whose outputs are cut, and what a program makes of them.
struct Program : TestModel {
  std::int64_t inputs, outputs, tokens = 5;
  std::function<Tensor(const Tensor&)> behind;
  torch::nn::Linear layer{nullptr};
  Program(std::int64_t in, std::int64_t out, std::function<Tensor(const Tensor&)> then)
      : inputs(in), outputs(out), behind(std::move(then)) {
    layer = register_module("layer", torch::nn::Linear(in, out));
    to(torch::kDouble);
  }
  Tensors run(const Tensors& in) override { return {behind(layer(in[0]))}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, tokens, inputs}, torch::kDouble)}; }
};

OpGraph captured(Program& program, const Tensors& in) {
  return passes::fold_linear(
      trace::capture(program, specs(in), [&](const Tensors& arguments) { return program.run(arguments); }));
}

/// With the layer's outputs in slices.
tensor_parallel::ShardedLayout layout_of(const OpGraph& graph, const UnitSlices& outputs) {
  tensor_parallel::LeafSlices leaves;
  for (const auto& [name, value] : graph.parameters) {
    if (name == "layer.weight" || name == "layer.bias") leaves[value] = outputs;
  }
  tensor_parallel::ShardTyping typing(graph, [](OpId) { return true; });
  return typing.run(leaves, [](ValueId) { return false; });
}

/// Runs the program on every shard and compares what each has with its slice of the whole.
/// @return whether the result is in slices; nothing was exchanged, so else there was no rule
bool runs_in_slices(Program& program, const UnitSlices& outputs, int shards) {
  constexpr std::int64_t kBatch = 3;
  const auto in = program.arguments(kBatch);
  const auto graph = fused::add_layer_norm().pattern(captured(program, in));
  const auto layout = layout_of(graph, outputs);
  const auto result = graph.outputs.front();
  const bool only_leaves = std::ranges::all_of(layout.before, [](const auto& item) {
    return std::ranges::all_of(item.second, [](const auto& move) { return move.move == ir::ShardMove::kCopy; });
  });
  if (!only_leaves || !layout.layouts[result.index()].is_sharded() || !layout.sums.empty()) return false;
  const auto run = [&](const OpGraph& of, const std::function<Tensor(ValueId, const Tensor&)>& own) {
    replay::Replayer replayer(of, replay::all_ops(of), {result}, at::kCPU);
    auto environment = replayer.environment();
    replay::bind_state(of, program, environment);
    for (const auto& [name, value] : of.parameters) {
      environment[value.index()] = own(value, environment[value.index()].detach());
    }
    environment[of.inputs.front().index()] = in[0];
    replayer.run(environment, {kBatch, kBatch});
    return environment[result.index()];
  };
  const auto whole = run(graph, [](ValueId, const Tensor& value) { return value; });
  const auto& slices = layout.layouts[result.index()].slices();
  const auto sharded = tensor_parallel::insert_moves(graph, {{shards, layout}});
  for (int place = 0; place < shards; ++place) {
    const auto mine = run(tensor_parallel::on_shard(sharded, {place}), [&](ValueId value, const Tensor& parameter) {
      const auto found = layout.leaves.find(value);
      return found == layout.leaves.end() ? parameter : slice_of(parameter, found->second, kBatch, shards, place);
    });
    const auto wanted = slice_of(whole, slices, kBatch, shards, place);
    REQUIRE(mine.sizes() == wanted.sizes());
    REQUIRE(torch::allclose(mine, wanted, 1e-12, 1e-12));
  }
  return true;
}

const UnitSlices kHidden{0, {0, 1}, 12, {1}};       // single hidden units
const UnitSlices kHeads{0, {0, 3}, 4, {2}};         // three projections of four heads of two
const UnitSlices kGroups{0, {0, 1}, 4, {4, 1, 1}};  // of each of four heads of keys and of values, four of queries

}  // namespace shard_rules

TEST_CASE("shard rules: operators on slices give slices of results", "[tensor_parallel]") {
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
  const auto grouped = [](const Tensor& x) {
    auto pieces = x.split({16, 4, 4}, -1);
    for (auto& piece : pieces) piece = piece.unflatten(-1, {-1, 1}).transpose(1, 2);
    return at::scaled_dot_product_attention(pieces[0], pieces[1], pieces[2], {}, 0.0, true, std::nullopt, true);
  };
  for (const int shards : {2, 3, 4}) {
    INFO("grouped, " << shards << " shards");
    Program program(4, 24, [&](const Tensor& x) { return grouped(torch::tanh(x)).transpose(1, 2).flatten(2); });
    CHECK(runs_in_slices(program, kGroups, shards));
  }
}

TEST_CASE("shard rules: every dim may be 0 or 1", "[tensor_parallel]") {
  using namespace shard_rules;
  using Behind = std::function<Tensor(const Tensor&, std::int64_t units, std::int64_t width)>;
  const std::vector<std::pair<std::string, Behind>> programs{
      {"element-wise", [](const Tensor& x, auto, auto) { return torch::gelu(x) * x.sigmoid(); }},
      {"in place", [](const Tensor& x, auto, auto) { return torch::relu(x).add_(1); }},
      {"along tokens", [](const Tensor& x, auto, auto) { return torch::softmax(x, 1).cumsum(1); }},
      {"flattened with others", [](const Tensor& x, auto, auto) { return x.flatten(0, 1); }},
      {"in pieces",
       [](const Tensor& x, auto, auto) {
         return torch::cat({x.slice(1, 0, 2), x.slice(1, 2)}, 1);
       }},
      {"units apart",
       [](const Tensor& x, auto units, auto width) {
         return x.view({x.size(0), x.size(1), units, width}).transpose(1, 2);
       }},
      {"units apart and joined",
       [](const Tensor& x, auto units, auto width) {
         return x.view({x.size(0), x.size(1), units, width}).transpose(1, 2).tanh().transpose(1, 2).flatten(2);
       }},
      {"scores of units",
       [](const Tensor& x, auto units, auto width) {
         const auto heads = x.view({x.size(0), x.size(1), units, width}).transpose(1, 2);
         return torch::matmul(torch::matmul(heads, heads.transpose(-2, -1)).softmax(-1), heads);
       }},
      {"norm of units",
       [](const Tensor& x, auto units, auto width) {
         return torch::layer_norm(x.view({x.size(0), x.size(1), units, width}), {width});
       }},
  };
  int run = 0;
  const auto check = [&](const auto& program, std::int64_t inputs, std::int64_t tokens, std::int64_t units,
                         std::int64_t width) {
    INFO(program.first << ": " << inputs << " inputs, " << tokens << " tokens, " << units << " units of " << width);
    Program net(1, units * width, [&](const Tensor& x) { return program.second(x, units, width); });
    net.layer->weight.set_data(torch::randn({units * width, inputs}, torch::kDouble));  // Linear(0, n) has no numbers
    net.inputs = inputs;
    net.tokens = tokens;
    try {
      net.run(net.arguments(3));
    } catch (const c10::Error&) {
      return;
    }
    ++run;
    const bool in_slices = runs_in_slices(net, {0, {0, 1}, units, {width}}, 2);
    // One unit, or units without elements, no shape tells from other dims: such layers are never cut.
    CHECK((in_slices || units == 1 || width == 0));
  };
  for (const auto& program : programs) {
    check(program, 4, 5, 4, 3);
    for (const std::int64_t size : {0, 1}) {
      check(program, size, 5, 4, 3);
      check(program, 4, size, 4, 3);
      check(program, 4, 5, 4, size);
      check(program, 4, 5, 1, size);
    }
  }
  CHECK(run == 81);
}

TEST_CASE("shard rules: operators that mix slices have none", "[tensor_parallel]") {
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
  Program torn(4, 24, [](const Tensor& x) { return x.split({12, 8, 4}, -1)[1]; });  // a part of queries beside keys
  CHECK_FALSE(runs_in_slices(torn, kGroups, 2));
}

TEST_CASE("shard rules: fused sum and norm are sharded as if separate", "[tensor_parallel]") {
  using namespace shard_rules;
  const UnitSlices heads{0, {0, 1}, 4, {3}};
  const auto norm_of = [](const Tensor& sum) {
    const auto size = sum.size(-1);
    return torch::layer_norm(sum, {size}, torch::linspace(1, 2, size, torch::kDouble),
                             torch::linspace(0, 1, size, torch::kDouble));
  };
  const auto by_head = [](const Tensor& x) { return x.view({x.size(0), 5, 4, 3}); };
  Program of_heads(4, 12, [&](const Tensor& x) { return norm_of(by_head(x) + by_head(x).tanh()); });
  CHECK(runs_in_slices(of_heads, heads, 2));
  Program of_units(4, 12, [&](const Tensor& x) { return norm_of(x + x.tanh()); });
  CHECK_FALSE(runs_in_slices(of_units, heads, 2));
  // One addend is whole: each shard takes its slice.
  for (const bool first : {false, true}) {
    Program beside_whole(4, 12, [&](const Tensor& x) {
      const auto own = torch::dropout(by_head(x), 0.5, true), whole = torch::ones({x.size(0), 5, 4, 3}, torch::kDouble);
      return norm_of(first ? own + whole : whole + own);
    });
    const auto apart = captured(beside_whole, beside_whole.arguments(3)),
               joined = fused::add_layer_norm().pattern(apart);
    CHECK(joined.ops.size() + 2 == apart.ops.size());
    for (const auto& graph : {apart, joined}) {
      const auto layout = layout_of(graph, heads);
      CHECK(layout.layouts[graph.outputs.front().index()].is_sharded());
      CHECK(layout.before.size() == 1);  // the slice
    }
  }
}

TEST_CASE("shard rules: random programs are exact or unsharded", "[tensor_parallel][laws]") {
  using namespace shard_rules;
  std::mt19937 random(23);
  const auto below = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random); };
  using Step = std::function<Tensor(const Tensor&)>;
  // Of a tensor of these sizes; any dim but that of the samples.
  const auto step_of = [&](const Tensor& like) -> std::pair<std::string, Step> {
    const auto rank = like.dim();
    const auto a = 1 + below(rank - 1), b = 1 + below(rank - 1);
    const auto size = like.size(a);
    const auto at = " " + std::to_string(a);
    const auto even = size % 2 == 0 && size > 0;
    switch (below(26)) {
      case 0:
        return {"transpose" + at, [=](const Tensor& x) { return x.transpose(a, b); }};
      case 1:
        return {"unsqueeze" + at, [=](const Tensor& x) { return x.unsqueeze(a); }};
      case 2:
        return {"flatten" + at, [=](const Tensor& x) { return x.flatten(std::min(a, b), std::max(a, b)); }};
      case 3:
        if (!even) break;
        return {"unflatten" + at, [=](const Tensor& x) { return x.unflatten(a, {size / 2, 2}); }};
      case 4:
        if (!even) break;
        return {"unflatten in front" + at, [=](const Tensor& x) { return x.unflatten(a, {2, size / 2}); }};
      case 5:
        if (!even) break;
        return {"glu" + at, [=](const Tensor& x) { return torch::glu(x, a); }};
      case 6:
        if (!even) break;
        return {"halves" + at, [=](const Tensor& x) { return x.chunk(2, a)[0] * x.chunk(2, a)[1]; }};
      case 7:
        return {"repeat each" + at, [=](const Tensor& x) { return x.repeat_interleave(2, a); }};
      case 8:
        return {"repeat" + at, [=](const Tensor& x) {
                  std::vector<std::int64_t> times(static_cast<std::size_t>(x.dim()), 1);
                  times[static_cast<std::size_t>(a)] = 2;
                  return x.repeat(times);
                }};
      case 9:
        return {"softmax" + at, [=](const Tensor& x) { return x.softmax(a); }};
      case 10:
        return {"centred" + at, [=](const Tensor& x) { return x - x.mean(a, true); }};
      case 11:
        return {"flip" + at, [=](const Tensor& x) { return x.flip(a); }};
      case 12:
        if (!even) break;
        return {"second half" + at, [=](const Tensor& x) { return x.slice(a, size / 2); }};
      case 13:
        if (size % 3 != 0) break;
        return {"third" + at, [=](const Tensor& x) { return x.narrow(a, size / 3, size / 3); }};
      case 14:
        return {"every other" + at, [=](const Tensor& x) { return x.slice(a, 0, std::nullopt, 2); }};
      case 15:
        return {"picked" + at, [=](const Tensor& x) { return x.index_select(a, torch::arange(size).flip(0)); }};
      case 16:
        if (rank < 3) break;
        return {"selected" + at, [=](const Tensor& x) { return x.select(a, size - 1); }};
      case 17:
        return {"expanded" + at, [=](const Tensor& x) {
                  auto sizes = x.unsqueeze(a).sizes().vec();
                  sizes[0] = -1;
                  sizes[static_cast<std::size_t>(a)] = 2;
                  return x.unsqueeze(a).expand(sizes);
                }};
      case 18:
        return {"joined" + at, [=](const Tensor& x) { return torch::cat({x, x * 2}, a); }};
      case 19:
        return {"stacked" + at, [=](const Tensor& x) { return torch::stack({x, x.relu()}, a); }};
      case 20:
        if (rank < 3) break;
        return {"by itself", [](const Tensor& x) { return torch::matmul(x, x.transpose(-1, -2)); }};
      case 21:
        return {"cumulated" + at, [=](const Tensor& x) { return x.cumsum(a); }};
      case 22:
        if (like.size(-1) != 2 || rank < 3) break;
        return {"turned", [](const Tensor& x) {
                  return torch::view_as_real(torch::view_as_complex(x.contiguous()) * 2).flatten(-2);
                }};
      case 23:
      case 24: {
        if (size % 6 != 0) break;
        const std::vector<std::int64_t> lengths{size / 6 * 4, size / 6, size / 6};
        if (b % 2 == 0)
          return {"keys by values" + at, [=](const Tensor& x) {
                    const auto parts = x.split(lengths, a);
                    return parts[1] * parts[2];
                  }};
        return {"queries" + at, [=](const Tensor& x) { return x.split(lengths, a)[0]; }};
      }
      default:
        break;
    }
    return {"gelu", [](const Tensor& x) { return torch::gelu(x); }};
  };
  int in_slices = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<Step> steps;
    std::string names;
    auto like = torch::randn({3, 5, 24}, torch::kDouble);
    for (auto left = 1 + below(6); left > 0; --left) {
      auto [name, step] = step_of(like);
      auto next = step(like);
      if (next.dim() < 2 || next.dim() > 6 || next.numel() > 20'000) continue;
      like = std::move(next);
      steps.push_back(std::move(step));
      names += name + ", ";
    }
    INFO(names << "round " << round);
    Program program(4, 24, [&](const Tensor& x) {
      Tensor out = x;
      for (const auto& step : steps) out = step(out);
      return out;
    });
    const auto units = round % 3 == 0 ? kHeads : round % 3 == 1 ? kGroups : UnitSlices{0, {0, 1}, 24, {1}};
    in_slices += runs_in_slices(program, units, 2 + round % 4 % 3) ? 1 : 0;
  }
  CHECK(in_slices > 600);
}

TEST_CASE("shard rules: views stay sharded where units stay intact", "[tensor_parallel][laws]") {
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
    UnitSlices slices{static_cast<std::int32_t>(dim_of[unit]), {0, 1}, factors[unit], {1}};
    for (std::size_t i = 0; i < factors.size(); ++i) {
      if (dim_of[i] != dim_of[unit]) continue;
      if (i < unit) slices.outer.fixed *= factors[i];
      if (i > unit) slices.inner.front() *= factors[i];
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
