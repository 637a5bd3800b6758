#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/coarsen/pieces.hpp>
#include <autopar/plan/coarsened.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/objective.hpp>
#include <autopar/plan/pipeline_of.hpp>
#include <autopar/plan/refine.hpp>

namespace autopar::detail {

/// From stagings of blocks to stagings of their nodes, the best of them improved on the way; of very many nodes in pieces
/// of the blocks.
class Uncoarsening {
 public:
  /// @param objective  of the nodes @pre the arguments outlive it
  Uncoarsening(const StepObjective& objective, const Coarsened& coarse)
      : objective_(objective), work_(objective.work()), constraints_(objective.constraints()), coarse_(coarse) {
    if (coarse.whole() || (work_.graph.node_count() < kMany && coarse.rounding(work_) == Bytes(0))) return;
    pieces_.emplace(work_, cut_into_pieces(work_, coarse.blocks, kPieces), objective.cluster(), constraints_);
    if (work_.segment_of.empty()) return;
    for (const NodeId piece : pieces_->work.graph.nodes()) {
      const NodeId first = pieces_->blocks.members(BlockId(piece.value())).front();
      pieces_->work.segment_of.push_back(work_.segment_of[first.index()]);
    }
  }

  /// What a search found, in nodes.
  [[nodiscard]] Candidates refined(const SearchResult& found) const {
    return pieces_ ? refined_in_pieces(found) : refined_in_nodes(found);
  }

  /// An objective with which a staging of the nodes is soon compared with others: that of `comparable` ones.
  [[nodiscard]] const StepObjective& comparing() const { return pieces_ ? pieces_->objective : objective_; }
  [[nodiscard]] Staging comparable(const Staging& fine) const {
    return pieces_ ? restricted(fine, pieces_->blocks) : fine;
  }

 private:
  static constexpr std::size_t kRefined = 4;  // of the best
  static constexpr int kEstimates = 1500;
  static constexpr int kEstimatesOfPieces = 300;
  static constexpr std::size_t kPieces = 640;
  static constexpr std::int64_t kSimulated = 400'000;  // actions, of refined stagings of many nodes

  [[nodiscard]] Candidates refined_in_nodes(const SearchResult& found) const {
    Candidates fine(constraints_.memory);
    std::size_t rank = 0;
    for (Candidate& candidate : found.candidates.ranked()) {
      Staging staging = projected(candidate.staging, coarse_.blocks);
      // Moving nodes and ranks knows nothing of stages that share ranks.
      if (!coarse_.whole() && candidate.staging.position_of.empty() && rank++ < kRefined) {
        const Staging better = LocalSearch(objective_).improve(staging, kEstimates).first;
        fine.offer({better, objective_(better)});
      }
      candidate.terms.savings = projected(std::move(candidate.terms.savings), coarse_.blocks);
      // Blocks do not know the modules of their nodes.
      if (!coarse_.whole() && !constraints_.recomputed_modules.empty()) candidate.terms = objective_(staging);
      fine.offer({std::move(staging), std::move(candidate.terms)});
    }
    return fine;
  }

  /// The best stagings are improved in pieces and simulated with all nodes. The others keep what was predicted of them in
  /// blocks, and are not better than the best.
  [[nodiscard]] Candidates refined_in_pieces(const SearchResult& found) const {
    std::vector<Candidate> ranked = found.candidates.ranked();
    std::vector<Candidate> finalists;
    LocalSearch local(pieces_->objective);
    std::size_t rank = 0;
    for (const Candidate& candidate : ranked) {
      if (rank == kRefined || !found.candidates.fits(candidate)) break;
      ++rank;
      finalists.push_back({projected(candidate.staging, coarse_.blocks), candidate.terms});
      finalists.back().terms.savings = projected(candidate.terms.savings, coarse_.blocks);
      // Moving nodes and ranks knows nothing of stages that share ranks, comparing nothing of synthesised orders.
      if (!candidate.staging.position_of.empty() || candidate.staging.schedule == ScheduleKind::kSynthesised) continue;
      const Staging staging = restricted(finalists.back().staging, pieces_->blocks);
      const Staging better = local.improve(staging, kEstimatesOfPieces).first;
      if (better == staging) continue;
      finalists.push_back({projected(better, pieces_->blocks), pieces_->objective.folded(better)});
      finalists.back().terms.savings = projected(std::move(finalists.back().terms.savings), pieces_->blocks);
    }
    std::stable_sort(finalists.begin(), finalists.end(),
                     [](const Candidate& a, const Candidate& b) { return a.terms.step < b.terms.step; });
    Candidates fine(constraints_.memory);
    std::int64_t left = kSimulated;
    for (Candidate& finalist : finalists) {
      if (left <= 0 && fine.any_fits()) break;
      left -= objective_.actions(finalist.staging);
      StepTerms terms = with_all_nodes(finalist);
      fine.offer({std::move(finalist.staging), std::move(terms)});
    }
    for (Candidate& candidate : ranked) {
      if (found.candidates.fits(candidate) && candidate.terms.step <= fine.best_step()) continue;
      candidate.staging.stage_of.clear();  // only the best one's is asked for
      candidate.terms.savings.recomputed.clear();
      fine.offer(std::move(candidate));
    }
    return fine;
  }

  [[nodiscard]] StepTerms with_all_nodes(const Candidate& candidate) const {
    // Blocks do not know the modules of their nodes.
    if (!constraints_.recomputed_modules.empty()) return objective_(candidate.staging);
    const SizedPipeline sized =
        make_pipeline(work_, candidate.staging, candidate.terms.ranks, constraints_.world);
    return objective_.evaluate(candidate.staging, sized, candidate.terms.savings);
  }

  const StepObjective& objective_;
  const Workload& work_;
  const Constraints& constraints_;
  const Coarsened& coarse_;
  std::optional<Coarsened> pieces_;
};

}  // namespace autopar::detail
