#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace autopar {

/// How a value of the whole batch lies on *slices* (the samples of one micro-batch on one replica).
enum class Placement : std::uint8_t {
  kReplicated,   ///< the same on every slice
  kBatched,      ///< the whole value is the slices' values, joined along the samples
  kPartialSum,   ///< the whole value is the sum of the slices' values
  kSampleIndex,  ///< number of the sample within its slice, as arange(B): only good for picking its own sample
  kRowStart,     ///< number of a sample's first entry in its slice, as arange(0, k*B, k): only good for bags of k
  kStatistic,    ///< of the slice's samples, as the saved mean of a batch norm: nothing may read it
  kWhole,        ///< only meaningful where one slice holds all samples, as x @ x.t()
  kEpilogue,     ///< a non-linear function of completed sums, computed after the pipeline on every rank
};

[[nodiscard]] constexpr std::string_view name_of(Placement placement) {
  switch (placement) {
    case Placement::kReplicated:
      return "replicated";
    case Placement::kBatched:
      return "batched";
    case Placement::kPartialSum:
      return "partial sum";
    case Placement::kSampleIndex:
      return "sample index";
    case Placement::kRowStart:
      return "row start";
    case Placement::kStatistic:
      return "batch statistic";
    case Placement::kWhole:
      return "whole batch";
    case Placement::kEpilogue:
      return "epilogue";
  }
  return "?";
}

/// Type of a value in the batch algebra. For kBatched, kSampleIndex and kRowStart, size[dim] = outer * batch * inner,
/// and the sample of position p is (p / inner) % batch: outer = 1 is sample-major ([B*T, …]), inner = 1 with outer > 1
/// is time-major.
struct BatchType {
  Placement placement = Placement::kReplicated;
  std::int32_t dim = -1;
  std::int64_t outer = 1;
  std::int64_t inner = 1;

  [[nodiscard]] static constexpr BatchType replicated() { return {}; }
  [[nodiscard]] static constexpr BatchType partial_sum() { return {Placement::kPartialSum, -1, 1, 1}; }
  [[nodiscard]] static constexpr BatchType of(Placement placement) { return {placement, -1, 1, 1}; }
  [[nodiscard]] static constexpr BatchType batched(std::int64_t dim, std::int64_t outer = 1, std::int64_t inner = 1) {
    return {Placement::kBatched, static_cast<std::int32_t>(dim), outer, inner};
  }

  [[nodiscard]] constexpr bool is(Placement other) const { return placement == other; }
  [[nodiscard]] constexpr bool is_batched() const { return placement == Placement::kBatched; }
  /// Whether a dim of the value runs over samples.
  [[nodiscard]] constexpr bool has_samples() const {
    return placement == Placement::kBatched || placement == Placement::kSampleIndex ||
           placement == Placement::kRowStart;
  }
  [[nodiscard]] constexpr bool same_layout(const BatchType& other) const {
    return outer == other.outer && inner == other.inner;
  }
  /// The same value with its samples in another dim.
  [[nodiscard]] constexpr BatchType at_dim(std::int64_t new_dim) const {
    return {placement, static_cast<std::int32_t>(new_dim), outer, inner};
  }

  friend constexpr bool operator==(const BatchType&, const BatchType&) = default;
};

/// "batched(dim 0, 1 x B x 16)"
[[nodiscard]] inline std::string to_string(const BatchType& type) {
  std::string text(name_of(type.placement));
  if (!type.has_samples()) return text;
  return text + "(dim " + std::to_string(type.dim) + ", " + std::to_string(type.outer) + " x B x " +
         std::to_string(type.inner) + ")";
}

}  // namespace autopar
