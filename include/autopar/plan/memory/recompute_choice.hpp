#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include <autopar/plan/memory/memory.hpp>

namespace autopar::detail {

/// Chooses what every stage recomputes: as few pieces as fit, those first that free most bytes per second.
class RecomputeChoice {
 public:
  /// @param segments  that may be recomputed
  /// @param fixed     `fixed_memory` of the staging
  RecomputeChoice(const SizedStages& stages, const StageSegments& segments, const std::vector<InFlight>& in_flight,
                  const std::vector<StageMemory>& fixed)
      : stages_(stages),
        pieces_(measured_pieces(stages.work, stages.staging, segments, stages.slice)),
        in_flight_(in_flight),
        fixed_(fixed),
        plain_(memory_apart(stages, in_flight, fixed)),
        positions_(stages_of_positions(stages.staging)) {}

  /// @param memory  that each rank has; nothing = everything is recomputed
  [[nodiscard]] StageSegments chosen(std::optional<Bytes> memory) const {
    StageSegments out(pieces_.size());
    for (const auto& stages : positions_) {
      const std::vector<Item> items = ranked(stages, !memory);
      const std::size_t count = memory ? fewest(items, stages, *memory) : items.size();
      for (std::size_t i = 0; i < count; ++i)
        out[items[i].stage].push_back(pieces_[items[i].stage][items[i].piece].nodes);
    }
    for (auto& segments : out) std::sort(segments.begin(), segments.end());
    return out;
  }

 private:
  struct Item {
    std::size_t stage, piece;
    Bytes freed{};       ///< by all micro-batches in flight
    double seconds = 0;  ///< of a micro-batch
  };

  /// @param useless  whether pieces count that free nothing
  [[nodiscard]] std::vector<Item> ranked(const std::vector<std::size_t>& stages, bool useless) const {
    std::vector<Item> items;
    for (const std::size_t s : stages) {
      for (std::size_t p = 0; p < pieces_[s].size(); ++p) {
        const SegmentPiece& piece = pieces_[s][p];
        if (useless || piece.freed() > Bytes(0))
          items.push_back({s, p, piece.freed() * in_flight_[s].whole, piece.forward.value()});
      }
    }
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return static_cast<double>(a.freed.value()) * b.seconds > static_cast<double>(b.freed.value()) * a.seconds;
    });
    return items;
  }

  /// The fewest items with which these stages together fit; if none fits, the number with the least memory.
  [[nodiscard]] std::size_t fewest(const std::vector<Item>& items, const std::vector<std::size_t>& stages,
                                   Bytes memory) const {
    std::vector<StageMemory> now;  // by number in `stages`
    std::vector<RecomputedStage> recomputed;
    for (const std::size_t s : stages) {
      now.push_back(plain_[s]);
      recomputed.emplace_back(stages_, s, in_flight_[s], fixed_[s]);
    }
    std::size_t best = 0;
    Bytes least = total(now);
    for (std::size_t count = 0; count <= items.size(); ++count) {
      if (count > 0) {
        const Item& item = items[count - 1];
        const auto own = static_cast<std::size_t>(std::ranges::find(stages, item.stage) - stages.begin());
        recomputed[own].recompute(pieces_[item.stage][item.piece]);
        recomputed[own].apply_to(now[own]);
      }
      const Bytes held = total(now);
      if (held <= memory) return count;
      if (held >= least) continue;
      least = held;
      best = count;
    }
    return best;
  }

  /// The memory of stages that share their ranks.
  [[nodiscard]] static Bytes total(std::vector<StageMemory> stages) {
    take_turns(stages);
    Bytes sum{};
    for (const StageMemory& stage : stages) sum += stage.total();
    return sum;
  }

  const SizedStages& stages_;
  std::vector<std::vector<SegmentPiece>> pieces_;
  const std::vector<InFlight>& in_flight_;
  const std::vector<StageMemory>& fixed_;
  std::vector<StageMemory> plain_;                   // of each stage on separate ranks
  std::vector<std::vector<std::size_t>> positions_;  // by the ranks that they share
};

}  // namespace autopar::detail
