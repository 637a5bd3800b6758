#include "torch/parameters/shard_slices.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ATen/ops/cat.h>

#include <autopar/capture/init_record.hpp>

namespace autopar::parameters {

std::vector<at::Tensor> ShardSlices::views(const at::Tensor& whole) const {
  if (is_one_range()) return {whole.view({-1}).narrow(0, ranges.front().begin + part.begin, part.size())};
  if (whole.numel() == 0) return {whole.view({blocks, 0})};
  const auto rows = whole.view({blocks, -1});
  const auto length = block_size();
  std::vector<at::Tensor> out;
  for (auto begin = part.begin; begin < part.end;) {
    const auto block = begin / length;
    const auto whole_blocks = begin % length == 0 && ranges.size() == 1 ? (part.end - begin) / length : 0;
    if (whole_blocks > 0) {
      out.push_back(rows.narrow(0, block, whole_blocks).narrow(1, ranges.front().begin, length));
      begin += whole_blocks * length;
      continue;
    }
    auto at = block * length;  // index of the range's start among the slices' elements
    for (const auto& range : ranges) {
      const auto from = std::max(begin, at), to = std::min(part.end, at + range.size());
      if (from < to) out.push_back(rows.select(0, block).narrow(0, range.begin + from - at, to - from));
      at += range.size();
    }
    begin = at;
  }
  return out;
}

at::Tensor ShardSlices::of(const at::Tensor& whole) const {
  auto found = views(whole);
  if (found.size() == 1) return found.front();
  if (found.empty()) return whole.view({-1}).narrow(0, 0, 0);
  for (auto& view : found) view = view.reshape({-1});
  return at::cat(found);
}

void ShardSlices::put(const at::Tensor& own, const at::Tensor& whole) const {
  const auto flat = own.reshape({-1});
  std::int64_t begin = 0;
  for (const auto& view : views(whole)) {
    view.copy_(flat.narrow(0, begin, view.numel()).view(view.sizes()));
    begin += view.numel();
  }
}

std::optional<at::Tensor> made_alone(InitRecord& record, const at::Tensor& placeholder, const ShardSlices& slices) {
  std::vector<at::Tensor> made;
  for (const auto& range : slices.ranges) {
    auto each = record.part(placeholder, slices.blocks, range.begin, range.end);
    if (!each) return std::nullopt;
    made.push_back(std::move(*each));
  }
  return (made.size() == 1 ? made.front() : at::cat(made, 1)).flatten();
}

ShardSlices slices_of_shard(const UnitSlices& slices, const std::vector<std::int64_t>& sizes, int shards, int place) {
  const auto dim = static_cast<std::size_t>(slices.dim);
  std::int64_t blocks = slices.outer.fixed, row = 1;
  for (std::size_t i = 0; i < dim; ++i) blocks *= sizes[i];
  for (std::size_t i = dim + 1; i < sizes.size(); ++i) row *= sizes[i];
  std::vector<Interval> ranges;
  for (const auto& [begin, end] : slices.ranges(shards, place)) ranges.push_back({begin * row, end * row});
  return {blocks, std::move(ranges)};
}

std::vector<std::int64_t> sliced_sizes(const UnitSlices& slices, std::vector<std::int64_t> sizes, int shards,
                                       int place) {
  sizes[static_cast<std::size_t>(slices.dim)] = slices.size_of(slices.split(shards).length(place)).fixed;
  return sizes;
}

}  // namespace autopar::parameters
