#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <autopar/plan/memory/memory.hpp>
#include <autopar/plan/model/workload.hpp>

namespace autopar::detail {

/// What crosses the borders of one stage; each value counts once a side. A value that two stages read is held for each
/// of them, so this is never more than what `predict_memory` counts.
struct Boundary {
  Affine in, out;          ///< values read and made
  Affine held;             ///< of the values made, those that their makers would not keep anyway
  Affine arriving, going;  ///< gradients of values made, and of values read

  /// Bytes for one slice, as `add_boundary` counts them.
  [[nodiscard]] std::int64_t bytes(std::int64_t slice, int in_flight, int microbatches) const {
    return bytes_at(held, slice).value() * std::min(microbatches, in_flight) +
           bytes_at(in, slice).value() * std::min(microbatches, in_flight + 1) +
           bytes_at(arriving, slice).value() * gradients_arriving(microbatches) +
           bytes_at(going, slice).value() * gradients_going(microbatches);
  }

  Boundary& operator+=(const Boundary& other) {
    in += other.in;
    out += other.out;
    held += other.held;
    arriving += other.arriving;
    going += other.going;
    return *this;
  }
  /// Clamped at 0, so that nothing shrinks as slices grow.
  [[nodiscard]] Boundary at_least_nothing() const {
    const auto clamped = [](Affine size) { return Affine{std::max(0.0, size.per_sample), std::max(0.0, size.fixed)}; };
    return {clamped(in), clamped(out), clamped(held), clamped(arriving), clamped(going)};
  }
  friend bool operator==(const Boundary&, const Boundary&) = default;
};

}  // namespace autopar::detail
