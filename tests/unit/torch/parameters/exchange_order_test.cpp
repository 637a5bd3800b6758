#include "torch/parameters/exchange_order.hpp"

#include <random>
#include <string>
#include <vector>

#include <torch/nn.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include "torch/parameters/gradient_buckets.hpp"

namespace exchange_order_test {

using namespace autopar;

/// `shards` tensor shards with so many replicas each, on ascending ranks, as the store of rank 0 knows them.
struct Layout {
  Layout(const std::vector<std::int64_t>& sizes, const std::optional<UnitSlices>& slices, int shards, int replicas,
         int zero)
      : module(sizes), store(module, Rank(0)) {
    auto& tensor = store.named("weight");
    tensor.slices = slices;
    for (int r = 0; r < shards * replicas; ++r) tensor.holders.push_back(Rank(r));
    for (int s = 0; shards > 1 && s < shards; ++s) {
      tensor.replicas_of_shard.emplace_back();
      for (int r = 0; r < replicas; ++r) tensor.replicas_of_shard.back().push_back(Rank(r * shards + s));
    }
    if (zero == 0) return;
    for (int s = 0; s < shards; ++s) {
      store.add_units(parameters::make_units({{"weight"}}, {{0, tensor.sizes_of_shard(s), at::kDouble}},
                                             tensor.holders_of_shard(s), zero),
                      at::kDouble);
    }
  }
  nets::CountedWeight module;
  parameters::ParameterStore store;
};

/// What a rank holds, as its handle has it.
at::Tensor held(const Layout& layout, Rank rank) {
  const auto& tensor = layout.store.named("weight");
  const auto whole = layout.module.weight.detach();
  const auto parts = layout.store.elements_of_holders(tensor);
  return parts.empty() ? whole.view({-1}) : parts[rank.index()].of(whole).reshape({-1});
}

void check(const Layout& layout) {
  const auto& tensor = layout.store.named("weight");
  const parameters::ExchangeOrder order(layout.store, tensor);
  const auto whole = layout.module.weight.detach();
  CHECK(order.size() == whole.numel());
  CHECK(order.of(Rank(99)).empty());
  const auto put_together = torch::full_like(whole, -1);
  std::int64_t counted = 0;
  for (const auto holder : tensor.holders) {
    const auto own = held(layout, holder);
    const auto interval = order.of(holder);
    REQUIRE(interval.size() == own.numel());
    CHECK(order.read(whole, interval).equal(own));
    if (!layout.store.counts_on(tensor, holder)) continue;
    counted += interval.size();
    // In pieces, as they arrive.
    for (std::int64_t begin = 0; begin < interval.size(); begin += 3) {
      const auto size = std::min<std::int64_t>(3, interval.size() - begin);
      order.write(own.narrow(0, begin, size), {interval.begin + begin, interval.begin + begin + size}, put_together);
    }
  }
  CHECK(counted == whole.numel());
  CHECK(put_together.equal(whole));
  // Any interval, over the bounds of shards.
  const auto all = order.read(whole, {0, order.size()}).clone();
  for (std::int64_t begin = 0; begin < order.size(); begin += 5) {
    const auto end = std::min(order.size(), begin + 9);
    CHECK(order.read(whole, {begin, end}).equal(all.narrow(0, begin, end - begin)));
  }
}

TEST_CASE("exchange order: intervals of all ranks form the parameter") {
  const UnitSlices plain{0, {0, 1}, 6, {1}}, columns{1, {0, 1}, 4, {1}}, fused{0, {0, 3}, 2, {1}},
      fused_columns{1, {0, 2}, 2, {1}}, grouped{0, {0, 1}, 2, {1, 1, 1}};
  for (const int zero : {0, 1, 3}) {
    for (const int replicas : {1, 2, 3}) {
      if (zero > 0 && replicas == 1) continue;
      for (const int shards : {1, 2}) {
        INFO(shards << " shards, " << replicas << " replicas, zero " << zero);
        for (const std::vector<std::int64_t>& sizes :
             std::vector<std::vector<std::int64_t>>{{}, {1}, {5}, {0}, {7, 3}, {2, 0}, {1, 1}, {3, 2, 2}, {5, 17}}) {
          check(Layout(sizes, std::nullopt, shards, replicas, zero));
        }
        if (shards == 1) continue;
        check(Layout({6, 4}, plain, shards, replicas, zero));
        check(Layout({6, 4}, columns, shards, replicas, zero));
        check(Layout({6, 4}, fused, shards, replicas, zero));
        check(Layout({6, 4}, fused_columns, shards, replicas, zero));
        check(Layout({6, 4}, grouped, shards, replicas, zero));
        check(Layout({6, 1}, plain, shards, replicas, zero));
        check(Layout({1, 4}, columns, shards, replicas, zero));
        check(Layout({0, 4}, columns, shards, replicas, zero));
        check(Layout({2, 4, 3}, columns, shards, replicas, zero));
        check(Layout({6, 0}, plain, shards, replicas, zero));
        check(Layout({6}, plain, shards, replicas, zero));
        // Shards are multiples of 16 elements: these end within rows.
        check(Layout({15, 14}, UnitSlices{1, {0, 1}, 14, {1}}, shards, replicas, zero));
        check(Layout({14, 15}, UnitSlices{0, {0, 1}, 14, {1}}, shards, replicas, zero));
        check(Layout({36, 7}, UnitSlices{0, {0, 3}, 12, {1}}, shards, replicas, zero));
        check(Layout({9, 24}, UnitSlices{1, {0, 2}, 12, {1}}, shards, replicas, zero));
      }
    }
  }
  check(Layout({6, 4}, plain, 4, 1, 0));  // shards of two units and of one
  check(Layout({15, 14}, UnitSlices{1, {0, 1}, 14, {1}}, 3, 2, 2));
}

}  // namespace exchange_order_test
