#include "torch/parameters/exchange_order.hpp"

#include <algorithm>
#include <cstddef>

#include <ATen/ops/cat.h>
#include <c10/util/accumulate.h>

namespace autopar::parameters {

ExchangeOrder::ExchangeOrder(const ParameterStore& parameters, const ManagedTensor& tensor)
    : size_(c10::multiply_integers(tensor.sizes)) {
  const auto parts = parameters.elements_of_holders(tensor);
  const auto hold = [&](Rank rank, std::int64_t piece_begin) {
    const auto at = static_cast<std::size_t>(std::ranges::find(tensor.holders, rank) - tensor.holders.begin());
    const auto& part = parts[at].part;
    const auto first = tensor.slices || parts[at].ranges.empty() ? 0 : parts[at].ranges.front().begin;
    held_[rank] = {piece_begin + first + part.begin, piece_begin + first + part.end};
  };
  if (!tensor.slices) {
    pieces_.push_back({ShardSlices(Interval{0, size_}), 0});
    for (const auto holder : tensor.holders) {
      if (parts.empty())
        held_[holder] = {0, size_};
      else
        hold(holder, 0);
    }
    return;
  }
  std::int64_t begin = 0;
  for (int shard = 0; shard < tensor.shards(); ++shard) {
    pieces_.push_back({slices_of_shard(*tensor.slices, tensor.sizes, tensor.shards(), shard), begin});
    for (const auto holder : tensor.holders_of_shard(shard)) hold(holder, begin);
    begin += pieces_.back().slices.size();
  }
}

Interval ExchangeOrder::of(Rank rank) const {
  const auto found = held_.find(rank);
  return found == held_.end() ? Interval{} : found->second;
}

std::vector<ExchangeOrder::Piece> ExchangeOrder::pieces_of(Interval elements) const {
  std::vector<Piece> found;
  for (const auto& [slices, begin] : pieces_) {
    const auto both = intersect(elements, {begin, begin + slices.size()});
    if (both.empty()) continue;
    found.push_back({slices, both.begin});
    found.back().slices.part = {both.begin - begin, both.end - begin};
  }
  return found;
}

at::Tensor ExchangeOrder::read(const at::Tensor& whole, Interval elements) const {
  std::vector<at::Tensor> parts;
  for (const auto& [slices, begin] : pieces_of(elements)) parts.push_back(slices.of(whole).reshape({-1}));
  if (parts.empty()) return whole.view({-1}).narrow(0, 0, 0);
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

void ExchangeOrder::write(const at::Tensor& flat, Interval elements, const at::Tensor& whole) const {
  for (const auto& [slices, begin] : pieces_of(elements))
    slices.put(flat.narrow(0, begin - elements.begin, slices.size()), whole);
}

}  // namespace autopar::parameters
