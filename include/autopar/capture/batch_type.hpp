#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <autopar/core/placement.hpp>

namespace autopar {

/// How a value of the whole batch appears on *slices*. A slice is the samples of one micro-batch on one replica.
enum class BatchKind : std::uint8_t {
  kReplicated,   ///< the same on every slice
  kBatched,      ///< the whole value is the slices' values, joined along the samples
  kPartialSum,   ///< the whole value is the sum of the slices' values
  kSampleIndex,  ///< number of the sample within its slice, like arange(B); may only pick that same sample
  kRowStart,     ///< number of a sample's first entry in its slice, like arange(0, k*B, k); may only start bags of k
  kStatistic,    ///< statistic of the slice's samples, like the saved mean of a batch norm; no op may read it
  kWhole,        ///< valid only if one slice holds all samples, like x @ x.t()
  kEpilogue,     ///< a non-linear function of completed sums, computed after the pipeline on every rank
};

[[nodiscard]] constexpr std::string_view name_of(BatchKind kind) {
  switch (kind) {
    case BatchKind::kReplicated:
      return "replicated";
    case BatchKind::kBatched:
      return "batched";
    case BatchKind::kPartialSum:
      return "partial sum";
    case BatchKind::kSampleIndex:
      return "sample index";
    case BatchKind::kRowStart:
      return "row start";
    case BatchKind::kStatistic:
      return "batch statistic";
    case BatchKind::kWhole:
      return "whole batch";
    case BatchKind::kEpilogue:
      return "epilogue";
  }
  return "?";
}

/// Type of a value in the batch algebra. For kBatched, kSampleIndex and kRowStart, size[dim] = outer * batch * inner.
/// Position p of that dim belongs to sample (p / inner) % batch. outer = 1 is sample-major ([B*T, …]); inner = 1 with
/// outer > 1 is time-major.
struct BatchType {
  BatchKind kind = BatchKind::kReplicated;
  std::int32_t dim = -1;
  std::int64_t outer = 1;
  std::int64_t inner = 1;

  [[nodiscard]] static constexpr BatchType replicated() { return {}; }
  [[nodiscard]] static constexpr BatchType partial_sum() { return {BatchKind::kPartialSum, -1, 1, 1}; }
  [[nodiscard]] static constexpr BatchType of(BatchKind kind) { return {kind, -1, 1, 1}; }
  [[nodiscard]] static constexpr BatchType batched(std::int64_t dim, std::int64_t outer = 1, std::int64_t inner = 1) {
    return {BatchKind::kBatched, static_cast<std::int32_t>(dim), outer, inner};
  }

  [[nodiscard]] constexpr bool is(BatchKind other) const { return kind == other; }
  [[nodiscard]] constexpr bool is_batched() const { return kind == BatchKind::kBatched; }
  /// Placement of the value on the replica axis of its stage's mesh; nullopt if the value has a meaning only within its
  /// slice.
  [[nodiscard]] constexpr std::optional<Placement> placement() const {
    switch (kind) {
      case BatchKind::kReplicated:
      case BatchKind::kWhole:
        return Placement::replicate();
      case BatchKind::kBatched:
        return Placement::shard(dim);
      case BatchKind::kPartialSum:
        return Placement::partial();
      default:
        return std::nullopt;
    }
  }
  /// Whether a dim of the value runs over samples.
  [[nodiscard]] constexpr bool has_samples() const {
    return kind == BatchKind::kBatched || kind == BatchKind::kSampleIndex || kind == BatchKind::kRowStart;
  }
  [[nodiscard]] constexpr bool same_layout(const BatchType& other) const {
    return outer == other.outer && inner == other.inner;
  }
  /// The same value with its samples in another dim.
  [[nodiscard]] constexpr BatchType at_dim(std::int64_t new_dim) const {
    return {kind, static_cast<std::int32_t>(new_dim), outer, inner};
  }

  friend constexpr bool operator==(const BatchType&, const BatchType&) = default;
};

/// "batched(dim 0, 1 x B x 16)"
[[nodiscard]] inline std::string to_string(const BatchType& type) {
  std::string text(name_of(type.kind));
  if (!type.has_samples()) return text;
  return text + "(dim " + std::to_string(type.dim) + ", " + std::to_string(type.outer) + " x B x " +
         std::to_string(type.inner) + ")";
}

}  // namespace autopar
