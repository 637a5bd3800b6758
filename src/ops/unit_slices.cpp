#include <autopar/capture/unit_slices.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace autopar {

UnitSlices UnitSlices::times(std::int64_t count) const {
  auto out = *this;
  for (auto& each : out.inner) each *= count;
  return out;
}

std::optional<UnitSlices> UnitSlices::over(std::int64_t count) const {
  auto out = *this;
  for (auto& each : out.inner) {
    if (each % count != 0) return std::nullopt;
    each /= count;
  }
  return out;
}

std::optional<UnitSlices> UnitSlices::piece(std::int64_t begin, std::int64_t length) const {
  std::vector<std::int64_t> parts;
  std::int64_t at = 0;
  for (std::int64_t block = 0; block < outer.fixed && at < begin + length; ++block) {
    for (const auto part : inner) {
      if (at >= begin && at < begin + length) parts.push_back(part);
      if ((at < begin && at + units * part > begin) || (at < begin + length && at + units * part > begin + length))
        return std::nullopt;
      at += units * part;
    }
  }
  if (parts.empty()) return std::nullopt;
  const auto blocks = fold_repeated(parts);
  return UnitSlices{dim, {0, blocks}, units, std::move(parts)};
}

std::int64_t fold_repeated(std::vector<std::int64_t>& parts) {
  const auto repeats = [&](std::size_t period) {
    return parts.size() % period == 0 &&
           std::equal(parts.begin() + static_cast<std::ptrdiff_t>(period), parts.end(), parts.begin());
  };
  std::size_t period = 1;
  while (!repeats(period)) ++period;
  const auto times = static_cast<std::int64_t>(parts.size() / period);
  parts.resize(period);
  return times;
}

std::vector<std::pair<std::int64_t, std::int64_t>> UnitSlices::ranges(int shards, int place) const {
  const auto own = split(shards);
  const auto first = own.begin(place), last = first + own.length(place);
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  std::int64_t at = 0;
  for (const auto part : inner) {
    out.emplace_back(at + first * part, at + last * part);
    at += units * part;
  }
  return out;
}

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
    if (!size.depends_on_batch() && size.fixed > 1) return UnitSlices{at, {0, 1}, size.fixed, {1}};
    if (!joined && size.per_sample > 1 && size.fixed == 0) joined = UnitSlices{at, {1, 0}, size.per_sample, {1}};
  }
  return joined;
}

// Both shapes list the same elements in the same order. A unit is identified by its number of elements; the new dim
// must hold whole units.
std::optional<UnitSlices> reshaped(const UnitSlices& slices, const std::vector<SizeExpr>& from,
                                   const std::vector<SizeExpr>& to) {
  const auto behind = product_of(from, static_cast<std::size_t>(slices.dim) + 1, from.size());
  if (!behind) return std::nullopt;
  for (std::size_t dim = to.size(); dim-- > 0;) {
    if (to[dim] == SizeExpr{0, 1} && slices.units != 1) continue;
    const auto after = product_of(to, dim + 1, to.size());
    if (!after) return std::nullopt;
    UnitSlices out{static_cast<std::int32_t>(dim), {}, slices.units, {}};
    bool follows_batch = false;
    for (const auto part : slices.inner) {
      const auto in_unit = product(*behind, {0, part});
      const auto inner = in_unit ? quotient(*in_unit, *after) : std::nullopt;
      if (!inner) return std::nullopt;
      follows_batch = follows_batch || inner->depends_on_batch();
      out.inner.push_back(inner->fixed);
    }
    if (follows_batch) continue;
    const auto outer = quotient(to[dim], {0, out.width() * out.units});
    if (!outer) continue;
    out.outer = *outer;
    return out;
  }
  return std::nullopt;
}

}  // namespace autopar
