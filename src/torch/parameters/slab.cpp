#include "torch/parameters/slab.hpp"

#include <algorithm>
#include <cstddef>

#include <ATen/ops/cat.h>

namespace autopar {

std::vector<at::Tensor> Slab::views(const at::Tensor& whole) const {
  if (blocks == 1) return {whole.view({-1}).narrow(0, range.begin + part.begin, part.size())};
  if (whole.numel() == 0) return {whole.view({blocks, 0})};
  const auto rows = whole.view({blocks, -1}).narrow(1, range.begin, range.size());
  if (!is_partial()) return {rows};
  std::vector<at::Tensor> out;
  const auto length = range.size();
  for (auto begin = part.begin; begin < part.end;) {
    const auto block = begin / length, within = begin % length;
    const auto whole_blocks = within == 0 ? (part.end - begin) / length : 0;
    if (whole_blocks > 0) {
      out.push_back(rows.narrow(0, block, whole_blocks));
      begin += whole_blocks * length;
      continue;
    }
    const auto elements = std::min(length - within, part.end - begin);
    out.push_back(rows.select(0, block).narrow(0, within, elements));
    begin += elements;
  }
  return out;
}

at::Tensor Slab::of(const at::Tensor& whole) const {
  auto found = views(whole);
  if (found.size() == 1) return found.front();
  if (found.empty()) return whole.view({-1}).narrow(0, 0, 0);
  for (auto& view : found) view = view.reshape({-1});
  return at::cat(found);
}

void Slab::put(const at::Tensor& own, const at::Tensor& whole) const {
  const auto flat = own.reshape({-1});
  std::int64_t begin = 0;
  for (const auto& view : views(whole)) {
    view.copy_(flat.narrow(0, begin, view.numel()).view(view.sizes()));
    begin += view.numel();
  }
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
