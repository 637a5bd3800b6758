#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/plan/model/slices.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/model/workload.hpp>

namespace autopar {

/// Of offloaded parameters that stages read in a smaller element type, so many bytes are on the device as they are on
/// the host at a time, when new values come from there.
inline constexpr Bytes kLandingBytes{8 << 20};

/// What the stages of a staging pay time for to hold less memory.
struct MemoryOptimizations {
  /// ZeRO level of all stages, among the replicas of each. 1: optimizer state in shards, what was updated is gathered;
  /// 2: gradients as well, summed into shards after every micro-batch; 3: parameters as well, gathered for every
  /// micro-batch ahead of its forward and of its backward.
  /// @source Rajbhandari et al., "ZeRO", SC 2020
  int zero = 0;
  /// [stage][segment]: nodes that keep what enters them alone and recompute their forward before their backward, which
  /// is whole under every schedule.
  std::vector<std::vector<std::vector<NodeId>>> recomputed{};
  /// Of all stages. Each rank's gradients go to its host when they are complete, the optimizer steps there, on the
  /// rank's shard under ZeRO, and what it changed comes back before the next forward.
  /// @source Ren et al., "ZeRO-Offload", USENIX ATC 2021
  Offload offload = Offload::kNone;
  /// Tensor shards cut by tokens what lies between the regions that they compute.
  /// @source Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 4.2.2
  bool sequence = false;

  [[nodiscard]] bool recomputes() const {
    return std::any_of(recomputed.begin(), recomputed.end(), [](const auto& segments) { return !segments.empty(); });
  }
  friend bool operator==(const MemoryOptimizations&, const MemoryOptimizations&) = default;
};

/// The memory optimizations that a plan describes, by the atoms of the model.
[[nodiscard]] inline MemoryOptimizations memory_optimizations_of(const Plan& plan) {
  MemoryOptimizations optimizations{plan.zero, {}, plan.offload, plan.sequence_parallel};
  for (const StagePlan& stage : plan.stages) optimizations.recomputed.push_back(stage.recomputed);
  if (!optimizations.recomputes()) optimizations.recomputed.clear();
  return optimizations;
}

namespace detail {

/// What one rank of several updates, under ZeRO its shard.
[[nodiscard]] constexpr Bytes updated_bytes(Bytes trainable, int zero, std::size_t replicas) {
  const auto parts = zero > 0 ? static_cast<std::int64_t>(replicas) : 1;
  return Bytes((trainable.value() + parts - 1) / parts);
}

}  // namespace detail

/// " (ZeRO 1, optimizer offloaded, 12 segments recomputed)", or nothing.
[[nodiscard]] inline std::string describe(const MemoryOptimizations& optimizations) {
  std::string text;
  if (optimizations.zero > 0) text = "ZeRO " + std::to_string(optimizations.zero);
  if (optimizations.offload == Offload::kOptimizer)
    text += text.empty() ? "optimizer offloaded" : ", optimizer offloaded";
  std::size_t segments = 0;
  for (const auto& stage : optimizations.recomputed) segments += stage.size();
  if (segments > 0) {
    text += (text.empty() ? "" : ", ") + std::to_string(segments) + (segments == 1 ? " segment" : " segments") +
            " recomputed";
  }
  return text.empty() ? "" : " (" + text + ")";
}

namespace detail {

[[nodiscard]] inline Bytes bytes_at(const Affine& size, std::int64_t samples) {
  return Bytes(static_cast<std::int64_t>(std::ceil(std::max(0.0, size.at(static_cast<double>(samples))))));
}

/// Bytes of what is computed with in place of so many bytes of a stage's parameters.
[[nodiscard]] constexpr Bytes in_proportion(Bytes bytes, Bytes computed_with, Bytes trained) {
  if (computed_with == trained) return bytes;
  const double smaller = static_cast<double>(computed_with.value()) / static_cast<double>(trained.value());
  return Bytes(static_cast<std::int64_t>(static_cast<double>(bytes.value()) * smaller));
}

/// The part of a segment that is in one stage, and what it takes to recompute it.
struct SegmentPiece {
  std::vector<NodeId> nodes;  ///< ascending
  Bytes saved{};     ///< what its nodes keep of a micro-batch unless it is recomputed, and its second run makes
  Bytes entering{};  ///< values of other nodes of the stage that it reads and that their makers do not keep
  Bytes leaving{};   ///< what its nodes keep of values that others read, which stays
  Bytes let_go{};    ///< of that, what others of the stage alone read: when the piece's backward comes, theirs are over
  Bytes gradients{};  ///< of values that others of the stage read: they are there while it runs again
  /// Of makers that would be given two gradients of a value: what they take less, as it comes to the piece as their
  /// sum.
  std::map<NodeId, Bytes> summed{};
  /// By maker: of what they keep, what others alone need. When they run again, it is gone as soon as all have.
  std::map<NodeId, Bytes> for_others{};
  Seconds forward{};

  /// Bytes of a micro-batch in flight that recomputing it saves; may be negative.
  [[nodiscard]] Bytes freed() const { return saved - entering - leaving; }
};

/// [stage][segment]: the segments that may be recomputed, as far as they are in one stage. Nodes that take totals over
/// the whole batch are in none.
[[nodiscard]] inline std::vector<std::vector<std::vector<NodeId>>> segments_in_stages(const Workload& work,
                                                                                      const Staging& staging) {
  std::vector<std::map<int, std::vector<NodeId>>> by_segment(staging.replicas.size());
  for (const NodeId node : work.graph.nodes()) {
    const int segment = work.segment_of.empty() ? node.value() : work.segment_of[node.index()];
    if (segment < 0 || work.graph[node].totals > Bytes(0)) continue;
    by_segment[static_cast<std::size_t>(staging.stage_of[node.index()])][segment].push_back(node);
  }
  std::vector<std::vector<std::vector<NodeId>>> out(by_segment.size());
  for (std::size_t s = 0; s < out.size(); ++s) {
    for (auto& [segment, nodes] : by_segment[s]) out[s].push_back(std::move(nodes));
  }
  return out;
}

/// A value of a piece that others read.
struct LeavingValue {
  std::int32_t value = -1;
  NodeId maker;
  Bytes bytes{};
  bool kept = false;      ///< by its maker
  bool gradient = false;  ///< others of the stage give it one
  bool stays = false;     ///< other stages or the caller read it: the stage's backward begins with it
  bool two_gradients = false, for_readers = false;  ///< see ValueProfile; not if the piece reads it, too
};

/// Not by shards, a part each.
[[nodiscard]] inline bool is_computed_whole(const Workload& work, NodeId node) {
  if (work.regions_of.empty() || work.region_shards.empty()) return true;
  return std::ranges::all_of(work.regions_of[node.index()],
                             [&](int region) { return work.region_shards[static_cast<std::size_t>(region)] == 1; });
}

/// What a piece takes beside what its nodes keep. @param values  that leave it, each once
inline void add_leaving(SegmentPiece& piece, const Workload& work, const std::vector<LeavingValue>& values) {
  for (const LeavingValue& value : values) {
    if (value.kept) piece.leaving += value.bytes;
    if (value.kept && !value.stays) piece.let_go += value.bytes;
    if (value.gradient) piece.gradients += value.bytes;
    // Of several nodes in one another may take most, or read it, and a shard takes a part of it.
    if (work.graph[value.maker].members.size() > 1 || !is_computed_whole(work, value.maker)) continue;
    if (value.two_gradients) piece.summed[value.maker] += value.bytes;
    if (value.for_readers) piece.for_others[value.maker] += value.bytes;
  }
}

/// By node the piece that it is in, if any.
using PieceOfNode = std::vector<SegmentPiece*>;

/// What flows between pieces and the rest of their stages.
/// @param slice  [stage] samples
inline void add_values_between(const PieceOfNode& piece_of, const Workload& work, const Staging& staging,
                               const std::vector<std::int64_t>& slice) {
  std::map<SegmentPiece*, std::vector<std::int32_t>> entered;
  std::map<SegmentPiece*, std::vector<LeavingValue>> left;
  std::set<std::pair<SegmentPiece*, std::int32_t>> read_inside;
  const auto bytes_in = [&](int stage, const Affine& bytes) {
    return bytes_at(bytes, slice[static_cast<std::size_t>(stage)]);
  };
  const auto enter = [&](SegmentPiece* piece, const ValueProfile& value, int stage) {
    auto& known = entered[piece];
    if (std::find(known.begin(), known.end(), value.value) != known.end()) return;
    known.push_back(value.value);
    piece->entering += bytes_in(stage, value.bytes);
  };
  const auto leave = [&](NodeId maker, const auto& value) -> LeavingValue& {
    auto& known = left[piece_of[maker.index()]];
    const auto found = std::ranges::find(known, value.value, &LeavingValue::value);
    if (found != known.end()) return *found;
    const int stage = staging.stage_of[maker.index()];
    return known.emplace_back(LeavingValue{value.value, maker, bytes_in(stage, value.bytes), value.kept});
  };
  for (const EdgeId edge : work.graph.edges()) {
    const NodeId from = work.graph.source(edge), to = work.graph.target(edge);
    SegmentPiece *const maker = piece_of[from.index()], *const reader = piece_of[to.index()];
    const ValueProfile& value = work.graph[edge];
    if (maker != nullptr && maker == reader) {
      if (value.two_gradients || value.for_readers) read_inside.emplace(maker, value.value);
      continue;
    }
    const int stage = staging.stage_of[to.index()];
    const bool within = staging.stage_of[from.index()] == stage;
    if (maker != nullptr) {
      LeavingValue& leaving = leave(from, value);
      leaving.gradient = leaving.gradient || (within && value.differentiable);
      leaving.stays = leaving.stays || !within;
      leaving.two_gradients = value.two_gradients;
      leaving.for_readers = value.kept && value.for_readers;
    }
    if (!value.kept && reader != nullptr && within) enter(reader, value, stage);
  }
  for (const OutputProfile& output : work.outputs) {
    if (piece_of[output.writer.index()] != nullptr) leave(output.writer, output).stays = true;
  }
  for (auto& [piece, values] : left) {
    for (LeavingValue& value : values) {
      if (read_inside.contains({piece, value.value})) value.two_gradients = value.for_readers = false;
    }
    add_leaving(*piece, work, values);
  }
}

/// [stage][segment] at the stage's largest slice.
/// @param slice  [stage] samples
[[nodiscard]] inline std::vector<std::vector<SegmentPiece>> measured_pieces(
    const Workload& work, const Staging& staging, const std::vector<std::vector<std::vector<NodeId>>>& segments,
    const std::vector<std::int64_t>& slice) {
  std::vector<std::vector<SegmentPiece>> pieces(segments.size());
  PieceOfNode piece_of(work.graph.node_count(), nullptr);
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const auto& costs = work.node_costs(slice[s]);
    pieces[s].resize(segments[s].size());
    for (std::size_t i = 0; i < segments[s].size(); ++i) {
      SegmentPiece& piece = pieces[s][i];
      piece.nodes = segments[s][i];
      for (const NodeId node : piece.nodes) {
        piece_of[node.index()] = &piece;
        piece.saved += costs[node.index()].saved;
        piece.forward += costs[node.index()].forward;
      }
    }
  }
  add_values_between(piece_of, work, staging, slice);
  return pieces;
}

}  // namespace detail

}  // namespace autopar
