#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/plan/multilevel/balanced_chunks.hpp>
#include <autopar/plan/multilevel/coarsened.hpp>
#include <autopar/plan/multilevel/deeper_chunks.hpp>
#include <autopar/plan/multilevel/pieces.hpp>
#include <autopar/plan/search/refine.hpp>
#include <autopar/plan/search/tensor_degrees.hpp>
#include <autopar/plan/step/objective.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// Turns stagings of blocks into stagings of their nodes and improves the best of them on the way. With very many nodes
/// it works on pieces of the blocks.
class Uncoarsening {
 public:
  /// @param objective  of the nodes @pre the arguments outlive it
  Uncoarsening(const StepObjective& objective, const Coarsened& coarse)
      : objective_(objective),
        work_(objective.work()),
        constraints_(objective.constraints()),
        budget_(constraints_.budget),
        coarse_(coarse) {
    if (budget_.pieces == 0 || coarse.whole() ||
        (work_.graph.node_count() < budget_.many_nodes && coarse.rounding(work_) == Bytes(0)))
      return;
    pieces_.emplace(work_, cut_into_pieces(work_, coarse.blocks, budget_.pieces), objective.cluster(), constraints_);
    if (work_.segment_of.empty()) return;
    for (const NodeId piece : pieces_->work.graph.nodes()) {
      const NodeId first = pieces_->blocks.members(BlockId(piece.value())).front();
      pieces_->work.segment_of.push_back(work_.segment_of[first.index()]);
    }
  }

  /// Whether there are so many nodes that only the best staging is predicted with all of them.
  [[nodiscard]] bool in_pieces() const { return pieces_.has_value(); }

  /// The result of a search, in nodes.
  [[nodiscard]] Candidates refined(const SearchResult& found) const {
    return pieces_ ? refined_in_pieces(found) : refined_in_nodes(found);
  }

  /// An objective that compares candidates of nodes quickly, and a candidate in its terms.
  [[nodiscard]] const StepObjective& comparing() const { return pieces_ ? pieces_->objective : objective_; }
  [[nodiscard]] Candidate comparable(Candidate fine) const {
    if (!pieces_) return fine;
    return {restricted(fine.staging, pieces_->blocks),
            with(std::move(fine.terms), [this](MemoryOptimizations optimizations) {
              return restricted(std::move(optimizations), pieces_->blocks);
            })};
  }

 private:
  /// Whether a staging can be improved in nodes: if all stages have the same tensor degree.
  [[nodiscard]] static bool moves_improve(const Staging& staging) {
    return std::ranges::adjacent_find(staging.tensor, std::ranges::not_equal_to{}) == staging.tensor.end();
  }
  /// Improves a staging: stages that share ranks are balanced, others go through local search. With tensor shards,
  /// groups of ranks are moved. @param local  for stagings without tensor shards
  [[nodiscard]] static Staging improved(const StepObjective& objective, LocalSearch& local, Staging staging,
                                        int estimates) {
    if (!staging.position_of.empty()) return balanced_chunks(objective, std::move(staging));
    if (staging.tensor.empty()) return local.improve(std::move(staging), estimates).first;
    const int degree = staging.tensor.front();
    const Constraints constraints = objective.constraints().at_degree(degree);
    const StepObjective own = objective.under(constraints);
    staging.tensor.clear();
    return at_degree(LocalSearch(own).improve(std::move(staging), estimates).first, degree);
  }
  /// The degree of all stages; 0 if they differ.
  [[nodiscard]] static int degree_of(const Staging& staging) {
    return staging.tensor.empty() ? 1 : moves_improve(staging) ? staging.tensor.front() : 0;
  }

  template <class Change>
  [[nodiscard]] static StepTerms with(StepTerms terms, Change change) {
    terms.optimizations = change(std::move(terms.optimizations));
    return terms;
  }
  [[nodiscard]] static Candidate projected_from(const Partition& blocks, Candidate candidate) {
    return {projected(candidate.staging, blocks),
            with(std::move(candidate.terms),
                 [&](MemoryOptimizations optimizations) { return projected(std::move(optimizations), blocks); })};
  }

  [[nodiscard]] Candidates refined_in_nodes(const SearchResult& found) const {
    Candidates fine(constraints_.memory);
    LocalSearch local(objective_);
    const Seconds hopeless = found.candidates.best_step() * budget_.refined_slack;
    std::map<int, std::size_t> rank;  // by tensor degree
    for (const Candidate& candidate : found.candidates.ranked()) {
      Candidate own = projected_from(coarse_.blocks, candidate);
      const bool improvable = moves_improve(candidate.staging) && candidate.terms.step <= hopeless;
      if (!coarse_.whole() && improvable && rank[degree_of(candidate.staging)]++ < budget_.refined) {
        const Staging better = improved(objective_, local, own.staging, budget_.estimates_of_nodes);
        if (better != own.staging)
          fine.offer({better, predicted(better, std::min(found.candidates.best_step(), fine.best_step()))});
      }
      // Blocks do not know the modules of their nodes, nor the order in which nodes run.
      if (!coarse_.whole()) {
        own.terms = constraints_.recomputed_modules.empty() ? objective_.of_nodes(own.staging, std::move(own.terms))
                                                            : objective_(own.staging);
      }
      fine.offer(std::move(own));
    }
    for (Candidate& deeper : DeeperChunks(objective_).of(fine.ranked())) fine.offer(std::move(deeper));
    return fine;
  }

  /// The straight schedule that splits backwards, as synthesised orders do.
  static constexpr ScheduleKind kSplitStraight =
      first_schedule([](const auto& row) { return row.layout == StageLayout::kStraight && row.splits_backwards; });

  /// @param limit  as the objective's. With many actions, orders are synthesised on the ranks and at the ZeRO level of
  /// the schedule that they start from.
  [[nodiscard]] StepTerms predicted(const Staging& staging, Seconds limit) const {
    const bool many = objective_.actions(staging) > budget_.many_actions;
    if (!many || !traits_of(staging.schedule).orders_in_plan) return objective_(staging, limit);
    Staging start = staging;
    start.schedule = kSplitStraight;
    return objective_.with_orders(staging, objective_.folded(start), limit);
  }

  /// Improves the best stagings in pieces, and predicts the best of all with all nodes. The others keep their
  /// prediction in blocks. It differs from the prediction in nodes by where buckets end, and is not better than the
  /// best.
  [[nodiscard]] Candidates refined_in_pieces(const SearchResult& found) const {
    std::vector<Candidate> ranked = found.candidates.ranked();
    std::vector<Candidate> finalists;
    LocalSearch local(pieces_->objective);
    std::map<int, std::size_t> rank_of;  // by tensor degree
    for (const Candidate& candidate : ranked) {
      if (!found.candidates.fits(candidate) ||
          candidate.terms.step > found.candidates.best_step() * budget_.refined_slack)
        break;
      if (rank_of[degree_of(candidate.staging)]++ >= budget_.refined) continue;
      finalists.push_back(projected_from(coarse_.blocks, candidate));
      // The comparison does not cover synthesised orders.
      const bool chunks = !candidate.staging.position_of.empty();
      if (!moves_improve(candidate.staging) || (!chunks && traits_of(candidate.staging.schedule).orders_in_plan))
        continue;
      const Staging staging = restricted(finalists.back().staging, pieces_->blocks);
      Staging better = improved(pieces_->objective, local, staging, budget_.estimates_of_pieces);
      if (better == staging) continue;
      StepTerms terms = pieces_->objective(better, found.candidates.best_step());
      finalists.push_back(projected_from(pieces_->blocks, {std::move(better), std::move(terms)}));
    }
    std::vector<Candidate> in_pieces;
    for (const Candidate& finalist : finalists) in_pieces.push_back(comparable(finalist));
    Candidates::rank(in_pieces, pieces_->constraints.memory);
    for (Candidate& deeper : DeeperChunks(pieces_->objective).of(in_pieces))
      finalists.push_back(projected_from(pieces_->blocks, std::move(deeper)));
    std::stable_sort(finalists.begin(), finalists.end(),
                     [](const Candidate& a, const Candidate& b) { return a.terms.step < b.terms.step; });
    Candidates fine(constraints_.memory);
    for (Candidate& finalist : finalists) {
      StepTerms terms = with_all_nodes(finalist);
      fine.offer({std::move(finalist.staging), std::move(terms)});
      if (fine.any_fits()) break;
    }
    for (Candidate& candidate : ranked) {
      if (found.candidates.fits(candidate) && candidate.terms.step <= fine.best_step()) continue;
      candidate.staging.stage_of.clear();  // needed for the best one only
      candidate.terms.optimizations.recomputed.clear();
      fine.offer(std::move(candidate));
    }
    return fine;
  }

  [[nodiscard]] StepTerms with_all_nodes(const Candidate& candidate) const {
    // Blocks do not know the modules of their nodes.
    if (!constraints_.recomputed_modules.empty()) return objective_(candidate.staging);
    const SizedPipeline sized = objective_.pipeline(candidate.staging, candidate.terms.meshes);
    return objective_.evaluate(candidate.staging, sized, candidate.terms.optimizations, candidate.terms.orders);
  }

  const StepObjective& objective_;
  const Workload& work_;
  const Constraints& constraints_;
  const SearchBudget& budget_;
  const Coarsened& coarse_;
  std::optional<Coarsened> pieces_;
};

}  // namespace autopar::detail
