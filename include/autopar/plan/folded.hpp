#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/course.hpp>
#include <autopar/plan/memory.hpp>
#include <autopar/plan/pipeline_of.hpp>
#include <autopar/plan/staging.hpp>
#include <autopar/plan/staging_costs.hpp>
#include <autopar/plan/workload.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/simulate.hpp>

namespace autopar::detail {

/// The pipeline of a staging with one rank for each position, and what its turns and messages take: those of the largest
/// share, between the first ranks of both stages.
class FoldedPipeline {
 public:
  /// @param share         [stage] samples, the largest of any replica
  /// @param microbatches  of which a replica has samples @pre the arguments outlive it
  FoldedPipeline(const Workload& work, const Staging& staging, const SizedPipeline& sized,
                 std::vector<std::int64_t> share, int microbatches, const StagingCosts& costs)
      : work_(work), sized_(sized), share_(std::move(share)), costs_(costs) {
    const auto positions = staging.replicas_of_positions().size();
    pipeline_.ranks = static_cast<int>(positions);
    for (int s = 0; s < staging.stages(); ++s) pipeline_.stages.push_back({Rank(staging.position(s))});
    for (std::size_t c = 0; c < sized.channels.size(); ++c) {
      const Channel& channel = sized.pipeline.channels[c];
      if (!channel.from.valid() || !channel.to.valid()) continue;
      pipeline_.channels.push_back(channel);
      channel_.push_back(c);
    }
    layout_ = {std::vector<std::int64_t>(positions, microbatches), microbatches};
  }

  [[nodiscard]] const Pipeline& pipeline() const { return pipeline_; }
  [[nodiscard]] const BatchLayout& layout() const { return layout_; }

  [[nodiscard]] Seconds forward(StageId stage, std::int64_t) const { return costs_.forward(stage, share(stage)); }
  [[nodiscard]] Seconds backward(StageId stage, std::int64_t) const { return costs_.backward(stage, share(stage)); }
  [[nodiscard]] Seconds backward_input(StageId stage, std::int64_t) const {
    return costs_.backward_input(stage, share(stage));
  }
  [[nodiscard]] Seconds backward_weight(StageId stage, std::int64_t) const {
    return costs_.backward_weight(stage, share(stage));
  }
  [[nodiscard]] Seconds message(Rank, const Action& action) const {
    const std::size_t c = channel_[static_cast<std::size_t>(action.channel)];
    const Channel& channel = sized_.pipeline.channels[c];
    const auto& size = sized_.channels[c];
    const StageId from = writer_of(channel, action.flow), to = reader_of(channel, action.flow);
    return work_.transfer(
        bytes_at(action.flow == Flow::kValue ? size.value : size.gradient, std::max(share(from), share(to))),
        sized_.pipeline.stages[from.index()].front(), sized_.pipeline.stages[to.index()].front());
  }
  [[nodiscard]] Seconds reduce(const Action&) const { return {}; }  // it has no groups

 private:
  [[nodiscard]] std::int64_t share(StageId stage) const { return share_[stage.index()]; }

  const Workload& work_;
  const SizedPipeline& sized_;
  std::vector<std::int64_t> share_;
  const StagingCosts& costs_;
  Pipeline pipeline_;
  BatchLayout layout_;
  std::vector<std::size_t> channel_;  // of the staging, by the folded pipeline's
};
static_assert(SplitBackwardCosts<FoldedPipeline>);

/// The course of a folded pipeline, to which gradient sums are added: buckets are taken as equal.
class FoldedCourse {
 public:
  /// @param orders  [rank] of a synthesised schedule, else none
  /// @pre the workload, the staging and its pipeline outlive it
  FoldedCourse(const Workload& work, const Staging& staging, const SizedPipeline& sized,
               std::vector<std::int64_t> share, int microbatches, const std::vector<std::vector<Turn>>& orders,
               const StagingCosts& costs)
      : staging_(staging), sized_(sized), costs_(costs), last_(staging.replicas.size()),
        positions_(staging.replicas_of_positions().size()) {
    const FoldedPipeline folded(work, staging, sized, std::move(share), microbatches, costs_);
    const GivenOrders given{orders.empty() ? orders : of_positions(orders), staging.microbatches};
    for (const Phase phase : phases(work.loss_mode)) {
      const Program program = make_program(folded.pipeline(), folded.layout(), staging.schedule, phase, given);
      read(program, simulate(folded.pipeline(), program, folded));
    }
  }

  [[nodiscard]] bool holds_for(const StagingCosts& costs) const { return costs_.turns_last_as_long(costs); }

  /// With these gradient sums; every rank does what its position does.
  [[nodiscard]] Course course(const StagingCosts& costs) const {
    std::vector<double> free_at(positions_.size(), 0), summing(positions_.size(), 0);
    const std::vector<std::size_t> position_of = positions_of_ranks();
    for (std::size_t g = 0; g < sized_.pipeline.groups.size(); ++g) {
      const ReduceGroup& group = sized_.pipeline.groups[g];
      std::vector<std::size_t> positions;
      for (const Rank rank : group.ranks) positions.push_back(position_of[rank.index()]);
      std::sort(positions.begin(), positions.end());
      positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
      const auto& buckets = sized_.bucket_bytes[g];
      const Bytes whole = std::accumulate(buckets.begin(), buckets.end(), Bytes(0));
      const Bytes mean(whole.value() / static_cast<std::int64_t>(buckets.size()));
      const double each = costs.sum_of(g, mean).value();
      // Buckets fill at equal distances: the sums wait for the first one, or the last sum for its bucket.
      double first = 0, last = 0;
      for (const std::size_t p : positions) {
        first = std::max({first, free_at[p], filled(group, p, 0)});
        last = std::max(last, filled(group, p, group.buckets - 1));
      }
      const double end = std::max(first + each * group.buckets, last + each);
      for (const std::size_t p : positions) {
        free_at[p] = end;
        summing[p] += each * group.buckets;
      }
    }
    return of_ranks(position_of, free_at, summing);
  }

 private:
  struct Last {
    double start = 0, end = 0;
  };
  struct Position {
    double busy = 0, communicating = 0;
    double computed = 0;  // end of the last turn
    double end = 0;       // of the last turn or message
  };

  /// One phase after the other.
  void read(const Program& program, const Timeline& timeline) {
    const double before = begin_;
    for (std::size_t p = 0; p < positions_.size(); ++p) {
      Position& mine = positions_[p];
      mine.busy += timeline.busy[p].value();
      for (std::size_t i = 0; i < program.ranks[p].size(); ++i) {
        const Action& action = program.ranks[p][i];
        const double start = before + timeline.spans[p][i].start.value(), end = before + timeline.spans[p][i].end.value();
        mine.end = std::max(mine.end, end);
        if (is_turn(action.kind)) mine.computed = std::max(mine.computed, end);
        else mine.communicating += end - start;
        if (gives_weight_gradients(action.kind)) last_[action.stage.index()] = {start, end};
      }
    }
    begin_ += timeline.step.value();
  }

  [[nodiscard]] Course of_ranks(const std::vector<std::size_t>& position_of, const std::vector<double>& free_at,
                                const std::vector<double>& summing) const {
    Course out(position_of.size());
    for (const auto& ranks : sized_.pipeline.stages) {
      for (const Rank rank : ranks) {
        const std::size_t r = rank.index(), p = position_of[r];
        out.busy[r] = Seconds(positions_[p].busy);
        out.end[r] = Seconds(std::max(positions_[p].end, free_at[p]));
        out.communicating[r] = Seconds(positions_[p].communicating);
        out.summing[r] = Seconds(summing[p]);
        out.step = std::max(out.step, out.end[r]);
      }
    }
    return out;
  }

  [[nodiscard]] double filled(const ReduceGroup& group, std::size_t p, int b) const {
    if (!group.stage.valid()) return positions_[p].computed;
    const Last& last = last_[group.stage.index()];
    return last.start + (b + 1.0) / group.buckets * (last.end - last.start);
  }
  [[nodiscard]] std::vector<std::size_t> positions_of_ranks() const {
    std::vector<std::size_t> position_of(static_cast<std::size_t>(sized_.pipeline.ranks), 0);
    for (std::size_t s = 0; s < last_.size(); ++s) {
      for (const Rank rank : sized_.pipeline.stages[s]) position_of[rank.index()] = position(s);
    }
    return position_of;
  }
  /// Of the first rank at each.
  [[nodiscard]] std::vector<std::vector<Turn>> of_positions(const std::vector<std::vector<Turn>>& orders) const {
    std::vector<std::vector<Turn>> out(positions_.size());
    for (std::size_t s = 0; s < last_.size(); ++s) out[position(s)] = orders[sized_.pipeline.stages[s].front().index()];
    return out;
  }
  [[nodiscard]] std::size_t position(std::size_t stage) const {
    return static_cast<std::size_t>(staging_.position(static_cast<int>(stage)));
  }

  const Staging& staging_;
  const SizedPipeline& sized_;
  StagingCosts costs_;               // with which it was played
  std::vector<Last> last_;           // by stage: backward
  std::vector<Position> positions_;
  double begin_ = 0;                 // of the phase that comes next
};

}  // namespace autopar::detail
