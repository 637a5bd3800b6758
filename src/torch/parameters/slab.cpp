#include "torch/parameters/slab.hpp"

#include <cstddef>

namespace autopar {

at::Tensor Slab::of(const at::Tensor& whole) const {
  if (whole.numel() == 0) return whole.view({blocks, 0});
  return whole.view({blocks, -1}).narrow(1, range.begin, range.size());
}

Slab slab_of(const UnitSlices& slices, const std::vector<std::int64_t>& sizes, int shards, int place) {
  const auto dim = static_cast<std::size_t>(slices.dim);
  std::int64_t blocks = slices.outer.fixed, row = slices.inner;
  for (std::size_t i = 0; i < dim; ++i) blocks *= sizes[i];
  for (std::size_t i = dim + 1; i < sizes.size(); ++i) row *= sizes[i];
  const auto units = slices.split(shards);
  const auto begin = units.begin(place);
  return {blocks, {begin * row, (begin + units.length(place)) * row}};
}

std::vector<std::int64_t> sliced_sizes(const UnitSlices& slices, std::vector<std::int64_t> sizes, int shards,
                                       int place) {
  sizes[static_cast<std::size_t>(slices.dim)] = slices.size_of(slices.split(shards).length(place)).fixed;
  return sizes;
}

}  // namespace autopar
