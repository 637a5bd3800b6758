#include "torch/parameters/part_layouts.hpp"

#include <cstddef>

#include <c10/util/accumulate.h>

namespace autopar::parameters {

namespace {

std::string text_of(std::int64_t begin, std::int64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

/// "indices [0, 6) of dim 0, which has 12"
std::string indices_of(const ManagedTensor& tensor, int shard) {
  constexpr std::size_t kShown = 4;
  const auto& slices = *tensor.slices;
  std::string ranges;
  std::size_t shown = 0;
  for (std::int64_t b = 0; b < slices.outer.fixed; ++b) {
    const auto block = b * slices.units * slices.width();
    for (const auto& [first, last] : slices.ranges(tensor.shards(), shard)) {
      if (++shown > kShown) return ranges + ", ... of dim " + std::to_string(slices.dim);
      ranges += (ranges.empty() ? "" : ", ") + text_of(block + first, block + last);
    }
  }
  return "indices " + ranges + " of dim " + std::to_string(slices.dim) + ", which has " +
         std::to_string(tensor.sizes[static_cast<std::size_t>(slices.dim)]);
}

}  // namespace

std::string describe_shard(const ManagedTensor& tensor, const ShardSlices& elements, int zero, Rank self) {
  const auto rank = "rank " + std::to_string(self.value());
  const auto level = "is held in shards (ZeRO " + std::to_string(zero) + ")";
  const auto whole = tensor.slices ? elements.blocks * elements.block_size() : c10::multiply_integers(tensor.sizes);
  const auto of_what = tensor.slices ? std::to_string(whole) + " of a slice" : std::to_string(whole);
  if (elements.empty()) return level + ": " + rank + " has none of its " + of_what + " elements";
  const auto own = tensor.slices ? elements.part : elements.ranges.front();
  return level + ": " + rank + " has elements " + text_of(own.begin, own.end) + " of " + of_what;
}

std::string describe_slice(const ManagedTensor& tensor, int shard, Rank self) {
  return "is held in slices: rank " + std::to_string(self.value()) + " has " + indices_of(tensor, shard);
}

std::string describe_copies(const std::vector<Rank>& holders) {
  std::string ranks;
  for (const auto holder : holders) ranks += (ranks.empty() ? "" : ", ") + std::to_string(holder.value());
  return "has copies on ranks " + ranks;
}

}  // namespace autopar::parameters
