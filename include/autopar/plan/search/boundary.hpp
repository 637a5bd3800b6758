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

/// What crosses the borders of a stage, from the edges one by one.
/// @param inside  inside(NodeId): whether the node belongs to the stage
template <class Inside>
[[nodiscard]] Boundary boundary_of(const Workload& work, const Inside& inside) {
  Boundary boundary;
  std::vector<std::int32_t> seen;
  const auto is_new = [&](std::int32_t value) {
    if (std::find(seen.begin(), seen.end(), value) != seen.end()) return false;
    seen.push_back(value);
    return true;
  };
  const auto add_read = [&](const auto& value) {
    if (!is_new(value.value)) return;
    boundary.in += value.bytes;
    if (value.differentiable) boundary.going += value.bytes;
  };
  const auto add_made = [&](const auto& value, bool differentiable) {
    if (!is_new(value.value)) return;
    boundary.out += value.bytes;
    if (!value.kept) boundary.held += value.bytes;
    if (differentiable) boundary.arriving += value.bytes;
  };
  for (const auto& input : work.inputs) {
    if (std::ranges::any_of(input.readers, inside)) add_read(input);
  }
  for (const EdgeId edge : work.graph.edges()) {
    const bool from = inside(work.graph.source(edge)), to = inside(work.graph.target(edge));
    const ValueProfile& value = work.graph[edge];
    if (from && !to) add_made(value, value.differentiable);
    if (to && !from) add_read(value);
  }
  for (const auto& output : work.outputs) {
    if (output.bytes.per_sample != 0 && inside(output.writer)) add_made(output, !work.loss_mode);
  }
  return boundary;
}

}  // namespace autopar::detail
