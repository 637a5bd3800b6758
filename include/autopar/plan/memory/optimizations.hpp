#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <autopar/plan/model/staging.hpp>

namespace autopar {

/// New values of offloaded parameters come from the host in pieces of so many bytes, if stages read the parameters in a
/// smaller element type. A piece is on the device in the host's element type.
inline constexpr Bytes kLandingBytes{8 << 20};

using StageSegments = std::vector<std::vector<std::vector<NodeId>>>;  ///< [stage][segment] nodes, ascending

/// What the stages of a staging spend time on to hold less memory.
struct MemoryOptimizations {
  /// ZeRO level of all stages, among the replicas of each. 1: optimizer state is sharded, and updated parameters are
  /// gathered. 2: gradients are sharded, too, and reduce-scattered after every micro-batch. 3: parameters are sharded,
  /// too, and gathered ahead of every forward and every backward.
  /// @source Rajbhandari et al., "ZeRO", SC 2020
  int zero = 0;
  /// Nodes that keep only what enters the segment and recompute their forward before their backward. That backward is
  /// whole under every schedule.
  StageSegments recomputed{};
  /// For all stages. Complete gradients go to the rank's host, where the optimizer steps, on the rank's shard under
  /// ZeRO. Updated parameters come back before the next forward.
  /// @source Ren et al., "ZeRO-Offload", USENIX ATC 2021
  Offload offload = Offload::kNone;
  /// Sequence parallelism: tensor shards cut by tokens what lies between their regions.
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

/// " (ZeRO 1, optimizer offloaded, 12 segments recomputed)", or nothing.
[[nodiscard]] inline std::string describe(const MemoryOptimizations& optimizations) {
  std::string text;
  const auto add = [&](const std::string& one) { text += (text.empty() ? " (" : ", ") + one; };
  if (optimizations.zero > 0) add("ZeRO " + std::to_string(optimizations.zero));
  if (optimizations.offload == Offload::kOptimizer) add("optimizer offloaded");
  std::size_t segments = 0;
  for (const auto& stage : optimizations.recomputed) segments += stage.size();
  if (segments > 0) add(detail::counted(segments, "segment", "segments") + " recomputed");
  return text.empty() ? "" : text + ")";
}

namespace detail {

/// The largest of equal shards.
[[nodiscard]] constexpr Bytes shard_of(Bytes whole, std::int64_t shards) {
  return Bytes((whole.value() + shards - 1) / shards);
}
/// Bytes that one of several replicas updates, under ZeRO its shard.
[[nodiscard]] constexpr Bytes updated_bytes(Bytes trainable, int zero, int replicas) {
  return shard_of(trainable, zero > 0 ? replicas : 1);
}

[[nodiscard]] inline Bytes bytes_at(const Affine& size, std::int64_t samples) {
  return Bytes(static_cast<std::int64_t>(std::ceil(std::max(0.0, size.at(static_cast<double>(samples))))));
}

/// Scales bytes of a stage's parameters to bytes of what is computed with in their place.
[[nodiscard]] constexpr Bytes in_proportion(Bytes bytes, Bytes computed_with, Bytes trained) {
  if (computed_with == trained) return bytes;
  const double smaller = static_cast<double>(computed_with.value()) / static_cast<double>(trained.value());
  return Bytes(static_cast<std::int64_t>(static_cast<double>(bytes.value()) * smaller));
}

/// The part of a segment that is in one stage, and what recomputing it takes.
struct SegmentPiece {
  std::vector<NodeId> nodes;  ///< ascending
  Bytes saved{};      ///< what its nodes keep of a micro-batch if they are not recomputed; their second run makes it
  Bytes entering{};   ///< values of other nodes of the stage that it reads and that their makers do not keep
  Bytes leaving{};    ///< what its nodes keep of values that others read, which stays
  Bytes let_go{};     ///< of that, what only others of the stage read: freed before the piece's backward
  Bytes gradients{};  ///< of values that others of the stage read; there while it runs again
  /// By maker with two gradients of a value: what it takes less, as the piece receives their sum.
  std::map<NodeId, Bytes> summed{};
  /// By maker: what it keeps for other nodes only. In the second run that is freed as soon as all nodes have run.
  std::map<NodeId, Bytes> for_others{};
  Seconds forward{};

  /// Bytes that recomputing it saves for each micro-batch in flight; may be negative.
  [[nodiscard]] Bytes freed() const { return saved - entering - leaving; }
};

/// [stage][segment]: the segments that may be recomputed, as far as they are in one stage. Nodes that take totals over
/// the whole batch are in none.
[[nodiscard]] inline StageSegments segments_in_stages(const Workload& work, const Staging& staging) {
  std::vector<std::map<int, std::vector<NodeId>>> by_segment(staging.replicas.size());
  for (const NodeId node : work.graph.nodes()) {
    const int segment = work.segment_of.empty() ? node.value() : work.segment_of[node.index()];
    if (segment < 0 || work.graph[node].totals > Bytes(0)) continue;
    by_segment[static_cast<std::size_t>(staging.stage_of[node.index()])][segment].push_back(node);
  }
  StageSegments out(by_segment.size());
  for (std::size_t s = 0; s < out.size(); ++s) {
    for (auto& [segment, nodes] : by_segment[s]) out[s].push_back(std::move(nodes));
  }
  return out;
}

/// A value of a piece that others read.
struct LeavingValue {
  NodeId maker;
  Bytes bytes{};
  bool kept = false;      ///< by its maker
  bool gradient = false;  ///< others of the stage give it a gradient
  bool stays = false;     ///< other stages or the caller read it, so the stage's backward begins with it
  bool two_gradients = false, for_readers = false;  ///< see ValueProfile; false if the piece reads it, too
};

/// Whether a node is computed whole, and not in slices by shards.
[[nodiscard]] inline bool is_computed_whole(const Workload& work, NodeId node) {
  if (work.regions_of.empty() || work.region_shards.empty()) return true;
  return std::ranges::all_of(work.regions_of[node.index()],
                             [&](int region) { return work.region_shards[static_cast<std::size_t>(region)] == 1; });
}

/// Adds what a value that leaves a piece takes beside what its nodes keep.
inline void add_leaving(SegmentPiece& piece, const Workload& work, const LeavingValue& value) {
  if (value.kept) piece.leaving += value.bytes;
  if (value.kept && !value.stays) piece.let_go += value.bytes;
  if (value.gradient) piece.gradients += value.bytes;
  // In a block another node may take most, or read the value; and a shard takes only a part of it.
  if (work.graph[value.maker].members.size() > 1 || !is_computed_whole(work, value.maker)) return;
  if (value.two_gradients) piece.summed[value.maker] += value.bytes;
  if (value.for_readers) piece.for_others[value.maker] += value.bytes;
}

/// By node: the piece that contains it, or null.
using PieceOfNode = std::vector<SegmentPiece*>;

/// Adds the values that flow between pieces and the rest of their stages.
/// @param slice  [stage] samples
inline void add_values_between(const PieceOfNode& piece_of, const Workload& work, const Staging& staging,
                               const std::vector<std::int64_t>& slice) {
  using ValueOfPiece = std::pair<SegmentPiece*, std::int32_t>;
  std::set<ValueOfPiece> entered, read_inside;
  std::map<ValueOfPiece, LeavingValue> left;
  const auto bytes_in = [&](int stage, const Affine& bytes) {
    return bytes_at(bytes, slice[static_cast<std::size_t>(stage)]);
  };
  const auto leave = [&](NodeId maker, const auto& value) -> LeavingValue& {
    const auto [entry, added] = left.try_emplace({piece_of[maker.index()], value.value});
    if (added) entry->second = {maker, bytes_in(staging.stage_of[maker.index()], value.bytes), value.kept};
    return entry->second;
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
    if (!value.kept && reader != nullptr && within && entered.emplace(reader, value.value).second)
      reader->entering += bytes_in(stage, value.bytes);
  }
  for (const OutputProfile& output : work.outputs) {
    if (piece_of[output.writer.index()] != nullptr) leave(output.writer, output).stays = true;
  }
  for (auto& [of_piece, value] : left) {
    if (read_inside.contains(of_piece)) value.two_gradients = value.for_readers = false;
    add_leaving(*of_piece.first, work, value);
  }
}

/// [stage][segment]: the pieces, measured at the stage's largest slice.
/// @param slice  [stage] samples
[[nodiscard]] inline std::vector<std::vector<SegmentPiece>> measured_pieces(const Workload& work,
                                                                            const Staging& staging,
                                                                            const StageSegments& segments,
                                                                            const std::vector<std::int64_t>& slice) {
  std::vector<std::vector<SegmentPiece>> pieces(segments.size());
  if (std::ranges::all_of(segments, [](const auto& stage) { return stage.empty(); })) return pieces;
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
