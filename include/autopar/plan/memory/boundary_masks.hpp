#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/plan/memory/memory.hpp>
#include <autopar/plan/model/node_mask.hpp>
#include <autopar/plan/model/workload.hpp>

namespace autopar::detail {

/// What crosses the borders of one stage; each value counts once a side. A value that two stages read is held for each
/// of them, so this is never more than what `predict_memory` counts.
struct Boundary {
  Affine in;               ///< values read
  Affine held;             ///< values made that their makers would not keep anyway
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
    held += other.held;
    arriving += other.arriving;
    going += other.going;
    return *this;
  }
  /// Clamped at 0, so that nothing shrinks as slices grow.
  [[nodiscard]] Boundary at_least_nothing() const {
    const auto clamped = [](Affine size) { return Affine{std::max(0.0, size.per_sample), std::max(0.0, size.fixed)}; };
    return {clamped(in), clamped(held), clamped(arriving), clamped(going)};
  }
  friend bool operator==(const Boundary&, const Boundary&) = default;
};

/// What crosses the borders of any stage of a small graph, from the makers and readers of each value.
/// @cost O(different makers and readers) a call; nothing is stored for a stage
class BoundaryMasks {
 public:
  /// @pre at most 64 nodes
  explicit BoundaryMasks(const Workload& work) {
    for (const auto& input : work.inputs) {
      NodeMask readers = 0;
      for (const NodeId reader : input.readers) readers |= bit(reader);
      add(input.value, {0, readers, false, read(input.bytes, input.differentiable)});
    }
    for (const EdgeId edge : work.graph.edges()) {
      const ValueProfile& value = work.graph[edge];
      const NodeMask maker = bit(work.graph.source(edge)), reader = bit(work.graph.target(edge));
      add(value.value, {maker, reader, false, both(value, value.differentiable)});
    }
    for (const auto& output : work.outputs) {
      if (output.bytes.per_sample != 0) add(output.value, {bit(output.writer), 0, true, both(output, !work.loss_mode)});
    }
    gather();
  }

  [[nodiscard]] Boundary operator()(NodeMask stage) const {
    Boundary sum;
    for (const Side& side : sums_) side.add_to(sum, stage);
    for (const auto& sides : mixed_) {
      const auto first = std::ranges::find_if(sides, [&](const Side& side) { return side.crosses(stage); });
      if (first != sides.end()) first->add_to(sum, stage);
    }
    return sum;
  }

  /// An upper bound: no stage has more of anything.
  [[nodiscard]] const Boundary& most() const { return most_; }

 private:
  /// Values that the same node makes and the same nodes read.
  struct Side {
    NodeMask maker, readers;  ///< no maker: a caller's value
    bool leaves;              ///< also to the caller
    Boundary bytes;           ///< what makers and readers have of it

    [[nodiscard]] bool is_made(NodeMask stage) const {
      return (maker & stage) != 0 && (leaves || (readers & ~stage) != 0);
    }
    [[nodiscard]] bool is_read(NodeMask stage) const { return (maker & stage) == 0 && (readers & stage) != 0; }
    [[nodiscard]] bool crosses(NodeMask stage) const { return is_made(stage) || is_read(stage); }
    void add_to(Boundary& sum, NodeMask stage) const {
      if (is_made(stage)) {
        sum.held += bytes.held;
        sum.arriving += bytes.arriving;
      } else if (is_read(stage)) {
        sum.in += bytes.in;
        sum.going += bytes.going;
      }
    }
    [[nodiscard]] bool is_like(const Side& other) const {
      return maker == other.maker && leaves == other.leaves && bytes == other.bytes;
    }
  };

  [[nodiscard]] static Boundary read(const Affine& bytes, bool differentiable) {
    Boundary boundary;
    boundary.in = bytes;
    if (differentiable) boundary.going = bytes;
    return boundary;
  }
  template <class Value>
  [[nodiscard]] static Boundary both(const Value& value, bool differentiable) {
    Boundary boundary = read(value.bytes, differentiable);
    if (!value.kept) boundary.held = value.bytes;
    if (differentiable) boundary.arriving = value.bytes;
    return boundary;
  }

  /// Of a value's sides, the first that crosses a border counts.
  void add(std::int32_t value, const Side& side) {
    auto& sides = by_value_[value];
    if (!sides.empty() && sides.back().is_like(side))
      sides.back().readers |= side.readers;
    else
      sides.push_back(side);
  }

  void gather() {
    std::map<std::tuple<NodeMask, NodeMask, bool>, Boundary> alike;
    for (auto& [value, sides] : by_value_) {
      for (const Side& side : sides) most_ += side.bytes.at_least_nothing();
      const Side& first = sides.front();
      if (sides.size() == 1)
        alike[{first.maker, first.readers, first.leaves}] += first.bytes;
      else
        mixed_.push_back(std::move(sides));
    }
    by_value_.clear();
    for (const auto& [who, bytes] : alike)
      sums_.push_back({std::get<0>(who), std::get<1>(who), std::get<2>(who), bytes});
  }

  std::map<std::int32_t, std::vector<Side>> by_value_;  // during construction only
  std::vector<Side> sums_;
  std::vector<std::vector<Side>> mixed_;  // of values whose edges do not agree, or that callers have as well
  Boundary most_;
};

}  // namespace autopar::detail
