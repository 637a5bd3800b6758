#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace autopar {

/// How a value of the whole batch is spread over *shares* (the samples of one micro-batch on one replica).
enum class Spread : std::uint8_t {
  kReplicated,   ///< the same on every share
  kBatched,      ///< the whole value is the shares' values, joined along the samples
  kPartialSum,   ///< the whole value is the sum of the shares' values
  kSampleIndex,  ///< number of the sample within its share, as arange(B): only good for picking its own sample
  kRowStart,     ///< number of a sample's first entry in its share, as arange(0, k*B, k): only good for bags of k
  kStatistic,    ///< of the share's samples, as the saved mean of a batch norm: nothing may read it
  kWhole,        ///< only meaningful where one share holds all samples, as x @ x.t()
  kEpilogue,     ///< a non-linear function of completed sums, computed after the pipeline on every rank
};

[[nodiscard]] constexpr std::string_view name_of(Spread spread) {
  switch (spread) {
    case Spread::kReplicated:
      return "replicated";
    case Spread::kBatched:
      return "batched";
    case Spread::kPartialSum:
      return "partial sum";
    case Spread::kSampleIndex:
      return "sample index";
    case Spread::kRowStart:
      return "row start";
    case Spread::kStatistic:
      return "batch statistic";
    case Spread::kWhole:
      return "whole batch";
    case Spread::kEpilogue:
      return "epilogue";
  }
  return "?";
}

/// Type of a value in the batch algebra. For kBatched, kSampleIndex and kRowStart, size[dim] = outer * batch * inner,
/// and the sample of position p is (p / inner) % batch: outer = 1 is sample-major ([B*T, …]), inner = 1 with outer > 1
/// is time-major.
struct BatchType {
  Spread spread = Spread::kReplicated;
  std::int32_t dim = -1;
  std::int64_t outer = 1;
  std::int64_t inner = 1;

  [[nodiscard]] static constexpr BatchType replicated() { return {}; }
  [[nodiscard]] static constexpr BatchType partial_sum() { return {Spread::kPartialSum, -1, 1, 1}; }
  [[nodiscard]] static constexpr BatchType of(Spread spread) { return {spread, -1, 1, 1}; }
  [[nodiscard]] static constexpr BatchType batched(std::int64_t dim, std::int64_t outer = 1, std::int64_t inner = 1) {
    return {Spread::kBatched, static_cast<std::int32_t>(dim), outer, inner};
  }

  [[nodiscard]] constexpr bool is(Spread other) const { return spread == other; }
  [[nodiscard]] constexpr bool is_batched() const { return spread == Spread::kBatched; }
  /// Whether a dim of the value runs over samples.
  [[nodiscard]] constexpr bool has_samples() const {
    return spread == Spread::kBatched || spread == Spread::kSampleIndex || spread == Spread::kRowStart;
  }
  [[nodiscard]] constexpr bool same_layout(const BatchType& other) const {
    return outer == other.outer && inner == other.inner;
  }
  /// The same value with its samples in another dim.
  [[nodiscard]] constexpr BatchType at_dim(std::int64_t new_dim) const {
    return {spread, static_cast<std::int32_t>(new_dim), outer, inner};
  }

  friend constexpr bool operator==(const BatchType&, const BatchType&) = default;
};

/// "batched(dim 0, 1 x B x 16)"
[[nodiscard]] inline std::string to_string(const BatchType& type) {
  std::string text(name_of(type.spread));
  if (!type.has_samples()) return text;
  return text + "(dim " + std::to_string(type.dim) + ", " + std::to_string(type.outer) + " x B x " +
         std::to_string(type.inner) + ")";
}

}  // namespace autopar
