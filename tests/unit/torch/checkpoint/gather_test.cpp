#include "torch/checkpoint/checkpoint.hpp"

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/nn.h>

#include <autopar/runtime/loopback.hpp>
#include <catch_shim.hpp>
#include <nets.hpp>

#include "torch/parameters/gradient_buckets.hpp"
#include "torch/parameters/parameter_store.hpp"

namespace gather_test {

using namespace autopar;

/// How a parameter lies on `shards` tensor shards of so many replicas.
struct Form {
  std::vector<std::int64_t> sizes;
  std::optional<UnitSlices> slices;
  int shards = 1, replicas = 1, zero = 0;
};

/// What a rank has of it.
checkpoint::ShardedTensorMetadata placed(const Form& form, const nets::CountedWeight& module, Rank rank) {
  parameters::ParameterStore store(module, rank);
  auto& tensor = store.named("weight");
  tensor.slices = form.slices;
  for (int r = 0; r < form.shards * form.replicas; ++r) tensor.holders.push_back(Rank(r));
  for (int s = 0; form.shards > 1 && s < form.shards; ++s) {
    tensor.replicas_of_shard.emplace_back();
    for (int r = 0; r < form.replicas; ++r) tensor.replicas_of_shard.back().push_back(Rank(r * form.shards + s));
  }
  for (int s = 0; form.zero > 0 && s < form.shards; ++s) {
    store.add_units(parameters::make_units({{"weight"}}, {{0, tensor.sizes_of_shard(s), at::kDouble}},
                                           tensor.holders_of_shard(s), form.zero),
                    at::kDouble);
  }
  checkpoint::ShardedTensorMetadata out{"weight", module.weight.detach(), tensor.holders, tensor.sizes,
                                        store.elements_of_holders(tensor)};
  if (out.shards.empty()) return out;
  out.handle = out.shards[rank.index()].of(out.handle).clone();
  if (form.zero == 0) out.handle = out.handle.reshape(tensor.sizes_of_shard(store.shard_of(tensor)));
  return out;
}

void check(const Form& form) {
  const nets::CountedWeight module(form.sizes);
  CHECK_NOTHROW(loopback::run(form.shards * form.replicas, [&](World& world) {
    const auto mine = placed(form, module, world.rank_id());
    const auto got = checkpoint::gather_tensor(world, mine);
    if (!got.equal(module.weight)) throw std::logic_error("another tensor is gathered");
    const auto at_root = checkpoint::gather_tensors(world, {mine});
    if (world.rank() == 0 && !at_root.front().equal(module.weight)) throw std::logic_error("another one on rank 0");
  }));
}

TEST_CASE("gather: reassembles slices, shards and shards of slices") {
  const UnitSlices rows{0, {0, 1}, 6, {1}}, columns{1, {0, 1}, 4, {1}}, fused{0, {0, 3}, 2, {1}},
      fused_columns{1, {0, 2}, 2, {1}};
  for (const int zero : {0, 1, 3}) {
    for (const int replicas : {1, 2, 3}) {
      if (zero > 0 && replicas == 1) continue;
      INFO("zero " << zero << ", " << replicas << " replicas");
      for (const auto& sizes :
           std::vector<std::vector<std::int64_t>>{{}, {1}, {2}, {0}, {7, 3}, {2, 0}, {1, 1}, {5, 17}})
        check({sizes, std::nullopt, 1, replicas, zero});
      if (replicas == 3) continue;
      check({{6, 4}, rows, 2, replicas, zero});
      check({{6, 4}, columns, 2, replicas, zero});
      // Shards are multiples of 16 elements: these end within rows.
      check({{12, 16}, UnitSlices{1, {0, 1}, 16, {1}}, 2, replicas, zero});
      check({{15, 14}, UnitSlices{1, {0, 1}, 14, {1}}, 2, replicas, zero});
      check({{14, 15}, UnitSlices{0, {0, 1}, 14, {1}}, 2, replicas, zero});
      check({{36, 7}, UnitSlices{0, {0, 3}, 12, {1}}, 2, replicas, zero});
      check({{9, 24}, UnitSlices{1, {0, 2}, 12, {1}}, 2, replicas, zero});
      check({{6, 4}, fused, 2, replicas, zero});
      check({{6, 4}, fused_columns, 2, replicas, zero});
      check({{1, 4}, columns, 2, replicas, zero});
      check({{6, 1}, rows, 2, replicas, zero});
      check({{6, 0}, rows, 2, replicas, zero});
      check({{0, 4}, columns, 2, replicas, zero});
      check({{6}, rows, 2, replicas, zero});
      check({{5, 2}, std::nullopt, 2, replicas, zero});
    }
  }
  check({{6, 4}, rows, 4, 1, 0});
  check({{6, 4}, columns, 3, 1, 0});
  check({{15, 14}, UnitSlices{1, {0, 1}, 14, {1}}, 3, 2, 2});
}

}  // namespace gather_test
