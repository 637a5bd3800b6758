#include "torch/parameters/parameter_store.hpp"

#include <numeric>
#include <vector>

#include <torch/nn.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>

#include "torch/parameters/gradient_buckets.hpp"

namespace parameter_store_test {

using namespace autopar;

const std::vector<Rank> kBoth{Rank(0), Rank(1)};

/// The weight of a layer, 40 elements of which shards take multiples of 16, by a ZeRO level; its bias on rank 0 alone.
struct Sharded {
  Sharded(int rank, int zero, bool offloaded = false) : parameters(*layer, Rank(rank)) {
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(torch::arange(40).reshape({20, 2}));
    parameters.named("weight").holders = kBoth;
    parameters.named("bias").holders = {Rank(0)};
    parameters.add_units(
        parameters::make_units({{"weight"}}, {{0, {20, 2}, at::kFloat}}, kBoth, zero, Bytes(1 << 20), offloaded),
        at::kFloat);
  }
  torch::nn::Linear layer{2, 20};
  parameters::ParameterStore parameters;
};

/// 40 numbers.
std::vector<float> counted_from(float first) {
  std::vector<float> numbers(40);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

std::vector<float> values_of(const at::Tensor& tensor) {
  const auto flat = tensor.detach().contiguous().to(at::kFloat).flatten();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

TEST_CASE("ParameterStore: a rank holds its own, elements count once") {
  for (const int rank : {0, 1}) {
    Sharded sharded(rank, 0);
    auto& parameters = sharded.parameters;
    const auto &weight = parameters.named("weight"), &bias = parameters.named("bias");
    CHECK(parameters.holds(weight));
    CHECK(parameters.holds(bias) == (rank == 0));
    CHECK_FALSE(parameters.is_sharded(weight));
    CHECK(parameters.elements_here(weight).size() == 40);
    CHECK(parameters.elements_here(bias).size() == (rank == 0 ? 20 : 0));
    CHECK(parameters.elements_of_holders(weight).empty());
    CHECK(parameters.counts(weight) == (rank == 0));
    CHECK(parameters.of(sharded.layer->bias).name() == "bias");
    CHECK_THROWS_AS(parameters.named("wieght"), InvalidArgument);
  }
}

TEST_CASE("ParameterStore: all ranks' shards form the parameter") {
  for (const int zero : {1, 2, 3}) {
    std::vector<float> together;
    std::int64_t counted = 0, end = 0;
    for (const int rank : {0, 1}) {
      Sharded sharded(rank, zero);
      auto& parameters = sharded.parameters;
      sharded.layer->weight.mutable_grad() = torch::arange(40).reshape({20, 2}).to(at::kFloat) + 10;
      parameters.hold_shards(nullptr, at::kCPU);
      const auto& weight = parameters.named("weight");
      const auto here = parameters.elements_here(weight);
      CHECK(parameters.is_sharded(weight));
      CHECK(parameters.counts(weight));
      CHECK(here.blocks == 1);
      REQUIRE(here.ranges.size() == 1);
      CHECK(here.ranges.front().begin == end);
      end = here.ranges.front().end;
      counted += here.size();
      CHECK((parameters.elements_of_holders(weight)[static_cast<std::size_t>(rank)].ranges == here.ranges));
      CHECK(sharded.layer->weight.sizes() == at::IntArrayRef({here.size()}));
      CHECK(sharded.layer->weight.requires_grad());
      const auto values = values_of(sharded.layer->weight);
      together.insert(together.end(), values.begin(), values.end());
      CHECK(values_of(sharded.layer->weight.grad()).front() == values.front() + 10);
    }
    CHECK(counted == 40);
    CHECK(together == counted_from(0));
  }
}

TEST_CASE("ParameterStore: compute memory contains the owner's elements") {
  Sharded sharded(0, 1);
  auto& parameters = sharded.parameters;
  parameters.hold_shards(nullptr, at::kCPU);
  const torch::NoGradGuard no_grad;
  sharded.layer->weight.zero_();
  const auto whole = parameters.compute_memory("weight");
  CHECK(whole.sizes() == at::IntArrayRef({20, 2}));
  CHECK(values_of(whole).front() == 0);
  CHECK_FALSE(parameters.compute_memory("bias").defined());
  CHECK_FALSE(parameters.compute_copy("weight").defined());
}

TEST_CASE("ParameterStore: offloaded on the host, uploaded for compute") {
  Sharded sharded(0, 0, true);
  auto& parameters = sharded.parameters;
  parameters.hold_shards(nullptr, at::kCPU);
  const torch::NoGradGuard no_grad;
  CHECK(values_of(sharded.layer->weight) == counted_from(0));
  sharded.layer->weight.add_(1);
  parameters.upload();
  parameters.wait_for_upload();
  auto& memory = parameters.memory_of(parameters.named("weight"));
  memory.allocate();
  CHECK(values_of(parameters.compute_memory("weight")) == counted_from(1));
}

TEST_CASE("ParameterStore: one dtype is gathered, others are refused") {
  torch::nn::Linear layer{2, 3};
  parameters::ParameterStore parameters(*layer, Rank(0));
  parameters.named("weight").holders = kBoth;
  parameters.add_units(parameters::make_units({{"weight"}}, {{0, {3, 2}, at::kFloat}}, kBoth, 3), at::kBFloat16);
  parameters.hold_shards(nullptr, at::kCPU);
  algebra::ParameterReads as_gathered, whole;
  as_gathered.copies = {at::kBFloat16};
  whole.itself = true;
  CHECK(parameters.compute_copy("weight").scalar_type() == at::kBFloat16);
  CHECK_NOTHROW(parameters.require_readable(parameters.named("weight"), as_gathered));
  CHECK_THROWS_AS(parameters.require_readable(parameters.named("weight"), whole), InvalidArgument);
  CHECK_NOTHROW(parameters.require_readable(parameters.named("bias"), whole));
}

/// A linear layer's: two tensor shards of two replicas each.
void lay_on_four_ranks(parameters::ParameterStore& parameters) {
  for (const auto* name : {"weight", "bias"}) {
    auto& tensor = parameters.named(name);
    tensor.holders = {Rank(0), Rank(1), Rank(2), Rank(3)};
    tensor.replicas_of_shard = {{Rank(0), Rank(2)}, {Rank(1), Rank(3)}};
  }
}

TEST_CASE("ParameterStore: tensor shards are summed and counted once") {
  for (const int rank : {0, 1, 2, 3}) {
    torch::nn::Linear layer(6, 4);
    const auto whole = layer->weight.detach().clone();
    parameters::ParameterStore parameters(*layer, Rank(rank));
    lay_on_four_ranks(parameters);
    auto& weight = parameters.named("weight");
    weight.slices =
        UnitSlices{1, {0, 2}, 3, {1}};  // of each half of the columns, two on the first shard, one on the other
    layer->weight.mutable_grad() = whole + 10;
    parameters.hold_slices(nullptr, at::kCPU);
    const auto columns = rank % 2 == 0 ? std::vector<std::int64_t>{0, 1, 3, 4} : std::vector<std::int64_t>{2, 5};
    const auto wanted = whole.index_select(1, torch::tensor(columns));
    CHECK(torch::equal(layer->weight, wanted));
    CHECK(torch::equal(layer->weight.grad(), wanted + 10));
    CHECK(layer->weight.requires_grad());
    CHECK(layer->bias.numel() == 4);
    CHECK_FALSE(parameters.is_whole(weight));
    CHECK(parameters.is_whole(parameters.named("bias")));
    CHECK((parameters.replicas_of(weight) == std::vector{Rank(rank % 2), Rank(rank % 2 + 2)}));
    CHECK((parameters.replicas_of(parameters.named("bias")) == parameters.replicas_of(weight)));
    CHECK(parameters.counts(weight) == (rank < 2));
    CHECK(parameters.counts(parameters.named("bias")) == (rank == 0));
    auto joined = torch::zeros({4, 6});
    const auto of_holders = parameters.elements_of_holders(weight);
    REQUIRE(of_holders.size() == 4);
    for (const auto& slices : of_holders) slices.of(joined).add_(1);
    CHECK(torch::equal(joined, torch::full({4, 6}, 2.0)));  // each element on two ranks
    CHECK(torch::equal(of_holders[static_cast<std::size_t>(rank)].of(whole.contiguous()).flatten(), wanted.flatten()));
  }
}

TEST_CASE("ParameterStore: ZeRO shards within replicas of a slice") {
  for (const int zero : {1, 3}) {
    for (const int rank : {0, 1, 2, 3}) {
      CAPTURE(zero, rank);
      torch::nn::Linear layer(30, 20);
      const auto whole = layer->weight.detach().clone(), bias = layer->bias.detach().clone();
      parameters::ParameterStore parameters(*layer, Rank(rank));
      lay_on_four_ranks(parameters);
      auto& weight = parameters.named("weight");
      weight.slices = UnitSlices{1, {0, 2}, 3, {5}};
      for (const int shard : {0, 1}) {
        parameters.add_units(
            parameters::make_units({{"weight"}, {"bias"}},
                                   {{0, weight.sizes_of_shard(shard), at::kFloat}, {1, {20}, at::kFloat}},
                                   weight.holders_of_shard(shard), zero),
            at::kFloat);
      }
      CHECK((weight.units == std::vector{0, 1}));
      CHECK(parameters.unit_of(weight) == &parameters.units()[static_cast<std::size_t>(rank % 2)]);
      layer->weight.mutable_grad() = whole + 10;
      parameters.hold_slices(nullptr, at::kCPU);
      parameters.hold_shards(nullptr, at::kCPU);
      CHECK_FALSE(parameters.is_whole(weight));
      CHECK(parameters.counts(weight));
      CHECK(parameters.counts(parameters.named("bias")) == (rank % 2 == 0));

      const auto here = parameters.elements_here(weight);
      CHECK(layer->weight.dim() == 1);
      CHECK(values_of(layer->weight) == values_of(here.of(whole)));
      CHECK(values_of(layer->weight.grad()) == values_of(here.of(whole) + 10));
      CHECK(values_of(layer->bias) == values_of(parameters.elements_here(parameters.named("bias")).of(bias)));
      auto joined = torch::zeros({20, 30}), times = torch::zeros({20});
      for (const auto& slices : parameters.elements_of_holders(weight)) {
        CHECK(slices.is_partial());
        slices.put(slices.of(whole) + slices.of(joined), joined);
      }
      CHECK(torch::equal(joined, whole));  // each element on one rank
      for (const auto& slices : parameters.elements_of_holders(parameters.named("bias")))
        slices.put(slices.of(times) + 1, times);
      CHECK(torch::equal(times, torch::full({20}, 2.0)));  // on one of each shard's
    }
  }
}

TEST_CASE("shard slices: a part is located at any begin and end") {
  const auto whole = torch::arange(60).reshape({5, 12});
  // Columns 3 to 6; 1, 2, 5, 8 and 9; three ranges of all elements.
  for (const parameters::ShardSlices& slices :
       {parameters::ShardSlices(5, {{3, 7}}), parameters::ShardSlices(5, {{1, 3}, {5, 6}, {8, 10}}),
        parameters::ShardSlices(1, {{2, 20}, {20, 22}, {50, 60}})}) {
    const auto elements = slices.of(whole).reshape({-1});
    REQUIRE(elements.numel() == slices.size());
    for (std::int64_t begin = 0; begin <= slices.size(); ++begin) {
      for (std::int64_t end = begin; end <= slices.size(); ++end) {
        auto part = slices;
        part.part = {begin, end};
        const auto wanted = elements.slice(0, begin, end);
        CAPTURE(slices.blocks, begin, end);
        CHECK(part.size() == end - begin);
        CHECK(torch::equal(part.of(whole).reshape({-1}), wanted));
        auto copy = torch::zeros_like(whole);
        part.put(wanted, copy);
        CHECK(torch::equal(slices.of(copy).reshape({-1}).slice(0, begin, end), wanted));
        CHECK(copy.sum().item<std::int64_t>() == wanted.sum().item<std::int64_t>());
      }
    }
  }
}

TEST_CASE("shard slices: a shard has its units of a fused projection") {
  // Of 2 units of queries (two rows each), keys and values.
  const UnitSlices rows{0, {0, 1}, 2, {2, 1, 1}};
  const auto whole = torch::arange(16).reshape({8, 2});
  const std::vector<std::vector<std::int64_t>> wanted{{0, 1, 4, 6}, {2, 3, 5, 7}};
  for (const int place : {0, 1}) {
    const auto own = whole.index_select(0, torch::tensor(wanted[static_cast<std::size_t>(place)]));
    CHECK(torch::equal(parameters::slices_of_shard(rows, {8, 2}, 2, place).of(whole).reshape({4, 2}), own));
    const auto columns = parameters::slices_of_shard(rows.at_dim(1), {2, 8}, 2, place);
    CHECK(torch::equal(columns.of(whole.t().contiguous()).reshape({2, 4}), own.t()));
    CHECK((parameters::sliced_sizes(rows, {8, 2}, 2, place) == std::vector<std::int64_t>{4, 2}));
  }
}

}  // namespace parameter_store_test
