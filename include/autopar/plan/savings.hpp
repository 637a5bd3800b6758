#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/plan/shares.hpp>
#include <autopar/plan/staging.hpp>
#include <autopar/plan/workload.hpp>

namespace autopar {

/// Of offloaded parameters that stages read in a smaller element type, so many bytes are on the device as they are on
/// the host at a time, when new values come from there.
inline constexpr Bytes kLandingBytes{8 << 20};

/// What the stages of a staging pay time for to hold less memory.
struct Savings {
  /// ZeRO level of all stages, among the replicas of each. 1: optimizer state in shares, what was updated is gathered;
  /// 2: gradients as well, summed into shares after every micro-batch; 3: parameters as well, gathered for every
  /// micro-batch ahead of its forward and of its backward.
  /// @source Rajbhandari et al., "ZeRO", SC 2020
  int zero = 0;
  /// [stage][segment]: nodes that keep what enters them alone and run their forward again before their backward, which
  /// is whole under every schedule.
  std::vector<std::vector<std::vector<NodeId>>> recomputed{};
  /// Of all stages. Each rank's gradients go to its host when they are complete, the optimizer steps there, on the rank's
  /// share under ZeRO, and what it changed comes back before the next forward.
  /// @source Ren et al., "ZeRO-Offload", USENIX ATC 2021
  Offload offload = Offload::kNone;

  [[nodiscard]] bool recomputes() const {
    return std::any_of(recomputed.begin(), recomputed.end(), [](const auto& segments) { return !segments.empty(); });
  }
  friend bool operator==(const Savings&, const Savings&) = default;
};

/// The savings that a plan describes, by the atoms of the model.
[[nodiscard]] inline Savings savings_of(const Plan& plan) {
  Savings savings{plan.zero, {}, plan.offload};
  for (const StagePlan& stage : plan.stages) savings.recomputed.push_back(stage.recomputed);
  if (!savings.recomputes()) savings.recomputed.clear();
  return savings;
}

namespace detail {

/// What one rank of several updates, under ZeRO its share.
[[nodiscard]] constexpr Bytes updated_bytes(Bytes trainable, int zero, std::size_t replicas) {
  const auto parts = zero > 0 ? static_cast<std::int64_t>(replicas) : 1;
  return Bytes((trainable.value() + parts - 1) / parts);
}

}  // namespace detail

/// " (ZeRO 1, optimizer offloaded, 12 segments run again)", or nothing.
[[nodiscard]] inline std::string describe(const Savings& savings) {
  std::string text;
  if (savings.zero > 0) text = "ZeRO " + std::to_string(savings.zero);
  if (savings.offload == Offload::kOptimizer) text += text.empty() ? "optimizer offloaded" : ", optimizer offloaded";
  std::size_t segments = 0;
  for (const auto& stage : savings.recomputed) segments += stage.size();
  if (segments > 0) {
    text += (text.empty() ? "" : ", ") + std::to_string(segments) + (segments == 1 ? " segment" : " segments") + " run again";
  }
  return text.empty() ? "" : " (" + text + ")";
}

/// Bytes that a node keeps for a micro-batch from its forward until the end of its backward.
[[nodiscard]] inline Bytes kept_in_flight(const NodeCost& cost, ScheduleKind schedule) {
  return keeps_backwards_whole(schedule) ? cost.saved : cost.saved + cost.put_off;
}

namespace detail {

[[nodiscard]] inline Bytes bytes_at(const Affine& size, std::int64_t samples) {
  return Bytes(static_cast<std::int64_t>(std::ceil(std::max(0.0, size.at(static_cast<double>(samples))))));
}

/// The part of a segment that is in one stage, and what it takes to run it again.
struct SegmentPiece {
  std::vector<NodeId> nodes;  ///< ascending
  Bytes kept{};               ///< what its nodes keep of a micro-batch unless it is run again
  Bytes saved{};              ///< of that, what its second run makes; its backward is whole, so nothing waits for it
  Bytes entering{};           ///< values of other nodes of the stage that it reads and that their makers do not keep
  Bytes leaving{};            ///< what its nodes keep of values that others read, which stays
  Seconds forward{};

  /// Bytes of a micro-batch in flight that running it again saves; may be negative.
  [[nodiscard]] Bytes freed() const { return kept - entering - leaving; }
};

/// [stage][segment]: the segments that may be run again, as far as they are in one stage. Nodes that take totals over
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

/// [stage][segment] at the stage's largest share.
/// @param share  [stage] samples
[[nodiscard]] inline std::vector<std::vector<SegmentPiece>> measured_pieces(
    const Workload& work, const Staging& staging, const std::vector<std::vector<std::vector<NodeId>>>& segments,
    const std::vector<std::int64_t>& share) {
  std::vector<std::vector<SegmentPiece>> pieces(segments.size());
  std::vector<SegmentPiece*> piece_of(work.graph.node_count(), nullptr);
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const auto& costs = work.node_costs(share[s]);
    pieces[s].resize(segments[s].size());
    for (std::size_t i = 0; i < segments[s].size(); ++i) {
      SegmentPiece& piece = pieces[s][i];
      piece.nodes = segments[s][i];
      for (const NodeId node : piece.nodes) {
        piece_of[node.index()] = &piece;
        piece.kept += kept_in_flight(costs[node.index()], staging.schedule);
        piece.saved += costs[node.index()].saved;
        piece.forward += costs[node.index()].forward;
      }
    }
  }
  std::map<SegmentPiece*, std::vector<std::int32_t>> entered, left;
  const auto add = [&](SegmentPiece* piece, auto& values, Bytes& sum, const auto& value, int stage) {
    auto& known = values[piece];
    if (std::find(known.begin(), known.end(), value.value) != known.end()) return;
    known.push_back(value.value);
    sum += bytes_at(value.bytes, share[static_cast<std::size_t>(stage)]);
  };
  for (const EdgeId edge : work.graph.edges()) {
    const std::size_t from = work.graph.source(edge).index(), to = work.graph.target(edge).index();
    if (piece_of[from] != nullptr && piece_of[from] == piece_of[to]) continue;
    const ValueProfile& value = work.graph[edge];
    const int maker = staging.stage_of[from], reader = staging.stage_of[to];
    if (value.kept && piece_of[from] != nullptr) add(piece_of[from], left, piece_of[from]->leaving, value, maker);
    if (!value.kept && piece_of[to] != nullptr && maker == reader)
      add(piece_of[to], entered, piece_of[to]->entering, value, reader);
  }
  for (const OutputProfile& output : work.outputs) {
    SegmentPiece* const piece = piece_of[output.writer.index()];
    if (output.kept && piece != nullptr)
      add(piece, left, piece->leaving, output, staging.stage_of[output.writer.index()]);
  }
  return pieces;
}

/// What every stage runs again: the pieces that free most bytes a second first, as few as fit.
class RecomputeChoice {
 public:
  /// @param plain      [stage] bytes without running anything again
  /// @param in_flight  [stage] micro-batches
  RecomputeChoice(std::vector<std::vector<SegmentPiece>> pieces, const Staging& staging, std::vector<Bytes> plain,
                  const std::vector<int>& in_flight)
      : pieces_(std::move(pieces)), in_flight_(in_flight), plain_(std::move(plain)) {
    for (int s = 0; s < staging.stages(); ++s) {
      const auto position = static_cast<std::size_t>(staging.position(s));
      if (position >= stages_.size()) stages_.resize(position + 1);
      stages_[position].push_back(static_cast<std::size_t>(s));
    }
  }

  [[nodiscard]] std::vector<std::vector<std::vector<NodeId>>> to_fit(Bytes memory) {
    return chosen([&](const std::vector<Item>& items, const std::vector<std::size_t>& stages) {
      return fewest(items, stages, memory);
    });
  }
  [[nodiscard]] std::vector<std::vector<std::vector<NodeId>>> everything() {
    return chosen([](const std::vector<Item>& items, const auto&) { return items.size(); }, true);
  }

 private:
  struct Item {
    std::size_t stage, piece;
    Bytes freed{};       ///< by all micro-batches in flight
    double seconds = 0;  ///< of a micro-batch
  };

  template <class HowMany>
  [[nodiscard]] std::vector<std::vector<std::vector<NodeId>>> chosen(HowMany how_many, bool useless = false) {
    std::vector<std::vector<std::vector<NodeId>>> out(pieces_.size());
    for (const auto& stages : stages_) {
      std::vector<Item> items;
      for (const std::size_t s : stages) {
        for (std::size_t p = 0; p < pieces_[s].size(); ++p) {
          const SegmentPiece& piece = pieces_[s][p];
          if (useless || piece.freed() > Bytes(0))
            items.push_back({s, p, piece.freed() * in_flight_[s], piece.forward.value()});
        }
      }
      std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        return static_cast<double>(a.freed.value()) * b.seconds > static_cast<double>(b.freed.value()) * a.seconds;
      });
      const std::size_t count = how_many(items, stages);
      for (std::size_t i = 0; i < count; ++i) out[items[i].stage].push_back(pieces_[items[i].stage][items[i].piece].nodes);
    }
    for (auto& segments : out) std::sort(segments.begin(), segments.end());
    return out;
  }

  /// With which what these stages hold together fits; if none does, with which it is least.
  [[nodiscard]] std::size_t fewest(const std::vector<Item>& items, const std::vector<std::size_t>& stages,
                                   Bytes memory) const {
    Bytes held{}, rebuilt{};
    for (const std::size_t s : stages) held += plain_[s];
    std::vector<Bytes> largest(pieces_.size());  // by stage
    std::size_t best = 0;
    Bytes least = held;
    for (std::size_t count = 0; count <= items.size(); ++count) {
      if (count > 0) {
        const Item& item = items[count - 1];
        held -= item.freed;
        Bytes& most = largest[item.stage];
        const Bytes grown = std::max(most, pieces_[item.stage][item.piece].saved);
        rebuilt += grown - most;
        most = grown;
      }
      if (held + rebuilt <= memory) return count;
      if (held + rebuilt < least) {
        least = held + rebuilt;
        best = count;
      }
    }
    return best;
  }

  std::vector<std::vector<SegmentPiece>> pieces_;
  std::vector<int> in_flight_;
  std::vector<Bytes> plain_;
  std::vector<std::vector<std::size_t>> stages_;  // by the ranks that they share
};

}  // namespace detail

}  // namespace autopar
