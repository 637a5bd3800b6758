#include "torch/tensor_parallel/unit_slices.hpp"

namespace autopar {

std::optional<SizeExpr> product(SizeExpr a, SizeExpr b) {
  if (a.depends_on_batch() && b.depends_on_batch()) return std::nullopt;
  if (b.depends_on_batch()) std::swap(a, b);
  return SizeExpr{a.per_sample * b.fixed, a.fixed * b.fixed};
}

std::optional<SizeExpr> quotient(SizeExpr a, SizeExpr b) {
  if (!b.depends_on_batch()) {
    if (b.fixed == 0 || a.per_sample % b.fixed != 0 || a.fixed % b.fixed != 0) return std::nullopt;
    return SizeExpr{a.per_sample / b.fixed, a.fixed / b.fixed};
  }
  const bool are_multiples = b.fixed == 0 && a.fixed == 0 && a.per_sample % b.per_sample == 0;
  return are_multiples ? std::optional(SizeExpr{0, a.per_sample / b.per_sample}) : std::nullopt;
}

std::optional<SizeExpr> product_of(const std::vector<SizeExpr>& sizes, std::size_t begin, std::size_t end) {
  std::optional<SizeExpr> all = SizeExpr{0, 1};
  for (auto i = begin; i < end && all; ++i) all = product(*all, sizes[i]);
  return all;
}

std::optional<UnitSlices> sequence_slices(const std::vector<SizeExpr>& sizes) {
  std::optional<UnitSlices> joined;
  for (std::size_t dim = 0; dim + 1 < sizes.size(); ++dim) {
    const auto size = sizes[dim];
    const auto at = static_cast<std::int32_t>(dim);
    if (!size.depends_on_batch() && size.fixed > 1) return UnitSlices{at, {0, 1}, size.fixed, 1};
    if (!joined && size.per_sample > 1 && size.fixed == 0) joined = UnitSlices{at, {1, 0}, size.per_sample, 1};
  }
  return joined;
}

// Both shapes list the same elements in the same order: units are told by how many elements lie in one, which the new
// dim must hold in whole.
std::optional<UnitSlices> reshaped(const UnitSlices& slices, const std::vector<SizeExpr>& from,
                                   const std::vector<SizeExpr>& to) {
  const auto behind = product_of(from, static_cast<std::size_t>(slices.dim) + 1, from.size());
  const auto in_unit = behind ? product(*behind, {0, slices.inner}) : std::nullopt;
  if (!in_unit) return std::nullopt;
  for (std::size_t dim = to.size(); dim-- > 0;) {
    if (to[dim] == SizeExpr{0, 1} && slices.units != 1) continue;
    const auto after = product_of(to, dim + 1, to.size());
    if (!after) return std::nullopt;
    const auto inner = quotient(*in_unit, *after);
    if (!inner) return std::nullopt;
    if (inner->depends_on_batch()) continue;
    const auto outer = quotient(to[dim], {0, inner->fixed * slices.units});
    if (outer) return UnitSlices{static_cast<std::int32_t>(dim), *outer, slices.units, inner->fixed};
  }
  return std::nullopt;
}

}  // namespace autopar
