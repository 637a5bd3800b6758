#include "torch/parameters/parameter_shard.hpp"

namespace autopar::parameters {

ParameterShard shard_here(const ParameterStore& parameters, const ManagedTensor& tensor) {
  const auto here = parameters.elements_here(tensor);
  const auto begin = here.ranges.empty() ? 0 : here.ranges.front().begin + here.part.begin;
  ParameterShard shard{tensor.sizes, begin, begin + here.size(), parameters.is_whole(tensor)};
  if (!tensor.slices || here.block_size() == 0) return shard;
  const auto& slices = *tensor.slices;
  shard.dim = slices.dim;
  for (std::int64_t b = 0; b < slices.outer.fixed; ++b) {
    const auto block = b * slices.units * slices.width();
    for (const auto& [first, last] : slices.ranges(tensor.shards(), parameters.shard_of(tensor)))
      shard.indices.emplace_back(block + first, block + last);
  }
  if (!here.is_one_range()) shard.begin = shard.end = 0;
  if (parameters.is_sharded(tensor)) shard.of_slice.emplace(here.part.begin, here.part.end);
  return shard;
}

}  // namespace autopar::parameters
