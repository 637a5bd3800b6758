#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/nn.h>

#include <nets.hpp>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/parameters/gradient_buckets.hpp"
#include "torch/parameters/parameter_store.hpp"

/// Tensors as plans place them: whole, in slices, in shards, and in shards of slices.
namespace placed_forms {

using namespace autopar;

/// How a parameter lies on `shards` tensor shards of so many replicas.
struct Form {
  std::vector<std::int64_t> sizes;
  std::optional<UnitSlices> slices;
  int shards = 1, replicas = 1, zero = 0;
};

/// What a rank has of it.
inline checkpoint::ShardedTensorMetadata placed(const Form& form, const nets::CountedWeight& module, Rank rank) {
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

inline std::vector<Form> forms() {
  const UnitSlices rows{0, {0, 1}, 6, {1}}, columns{1, {0, 1}, 4, {1}}, fused{0, {0, 3}, 2, {1}},
      fused_columns{1, {0, 2}, 2, {1}};
  std::vector<Form> all;
  for (const int zero : {0, 1, 3}) {
    for (const int replicas : {1, 2, 3}) {
      if (zero > 0 && replicas == 1) continue;
      for (const auto& sizes :
           std::vector<std::vector<std::int64_t>>{{}, {1}, {2}, {0}, {7, 3}, {2, 0}, {1, 1}, {5, 17}})
        all.push_back({sizes, std::nullopt, 1, replicas, zero});
      if (replicas == 3) continue;
      const std::vector<Form> in_two{
          {{6, 4}, rows},
          {{6, 4}, columns},
          // Shards are multiples of 16 elements: these end within rows.
          {{12, 16}, UnitSlices{1, {0, 1}, 16, {1}}},
          {{15, 14}, UnitSlices{1, {0, 1}, 14, {1}}},
          {{14, 15}, UnitSlices{0, {0, 1}, 14, {1}}},
          {{36, 7}, UnitSlices{0, {0, 3}, 12, {1}}},
          {{9, 24}, UnitSlices{1, {0, 2}, 12, {1}}},
          {{6, 4}, fused},
          {{6, 4}, fused_columns},
          {{1, 4}, columns},
          {{6, 1}, rows},
          {{6, 0}, rows},
          {{0, 4}, columns},
          {{6}, rows},
          {{5, 2}, std::nullopt},
      };
      for (auto form : in_two) {
        form.shards = 2;
        form.replicas = replicas;
        form.zero = zero;
        all.push_back(form);
      }
    }
  }
  all.push_back({{6, 4}, rows, 4, 1, 0});
  all.push_back({{6, 4}, columns, 3, 1, 0});
  all.push_back({{15, 14}, UnitSlices{1, {0, 1}, 14, {1}}, 3, 2, 2});
  return all;
}

}  // namespace placed_forms
