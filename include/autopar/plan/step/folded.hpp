#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/memory/memory.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/step/staging_costs.hpp>
#include <autopar/plan/step/timeline.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/simulate.hpp>

namespace autopar::detail {

/// Seconds of the messages that a rank sends or receives for a micro-batch over one channel, one after the other. For
/// the rank that has most of them.
class RankMessages {
 public:
  /// @param slice  [stage] samples, the largest of any replica @pre the arguments outlive it
  RankMessages(const Workload& work, const SizedPipeline& sized, std::vector<std::int64_t> slice)
      : work_(work), sized_(sized), slice_(std::move(slice)), known_(2 * sized.channels.size()) {}

  [[nodiscard]] std::int64_t slice(StageId stage) const { return slice_[stage.index()]; }

  /// @param c  a channel of the staging with a stage at one end at least
  [[nodiscard]] Seconds over(std::size_t c, Flow flow) const {
    auto& known = known_[2 * c + (flow == Flow::kGradient ? 1 : 0)];
    if (!known) known = all(c, flow);
    return *known;
  }

 private:
  [[nodiscard]] Seconds all(std::size_t c, Flow flow) const {
    const Channel& channel = sized_.pipeline.channels[c];
    const StageId from = writer_of(channel, flow), to = reader_of(channel, flow);
    const Affine& size = flow == Flow::kValue ? sized_.channels[c].value : sized_.channels[c].gradient;
    if (!from.valid()) return with_callers(size, to, false);
    if (!to.valid()) return with_callers(size, from, true);
    const auto senders = replicas(from), readers = replicas(to);
    const auto few = std::min(senders, readers), many = std::max(senders, readers);
    const std::int64_t samples = std::max(slice(from), slice(to));
    const bool batched = channel.kind == ChannelKind::kBatched;
    const auto count =
        batched ? std::min(samples, overlaps(few, many)) : static_cast<std::int64_t>((many + few - 1) / few);
    const Bytes each = bytes_at(size, batched ? (samples + count - 1) / count : samples);
    // Every shard of a reader gets it, from the writer's shards in turn.
    const int copies = (mesh(to).tensor() + mesh(from).tensor() - 1) / mesh(from).tensor();
    return work_.transfer(each, mesh(from).rank(0), mesh(to).rank(0)) * static_cast<double>(count * copies);
  }

  /// Every rank has a piece of the batch; the pieces of the last replica belong to the last ranks.
  [[nodiscard]] Seconds with_callers(const Affine& size, StageId stage, bool sends) const {
    const Rank own = mesh(stage).ranks().back();
    const std::int64_t samples = slice(stage), world = sized_.pipeline.ranks;
    const std::int64_t count = std::min(samples, overlaps(replicas(stage), static_cast<std::size_t>(world)));
    const Bytes each = bytes_at(size, (samples + count - 1) / count);
    Seconds sum{};
    for (std::int64_t i = 0; i < count; ++i) {
      const Rank other(static_cast<std::int32_t>(world - 1 - i));
      if (other != own) sum += sends ? work_.transfer(each, own, other) : work_.transfer(each, other, own);
    }
    return sum;
  }

  /// Most of `many` equal intervals that one of `few` equal intervals of the same whole meets.
  [[nodiscard]] static std::int64_t overlaps(std::size_t few, std::size_t many) {
    std::size_t most = 1;
    for (std::size_t q = 0; q < few; ++q) most = std::max(most, ((q + 1) * many + few - 1) / few - q * many / few);
    return static_cast<std::int64_t>(most);
  }
  [[nodiscard]] const Mesh& mesh(StageId stage) const { return sized_.pipeline.stages[stage.index()]; }
  [[nodiscard]] std::size_t replicas(StageId stage) const { return static_cast<std::size_t>(mesh(stage).replicas()); }

  const Workload& work_;
  const SizedPipeline& sized_;
  std::vector<std::int64_t> slice_;
  mutable std::vector<std::optional<Seconds>> known_;  // [2 * channel + flow]
};

/// The pipeline of a staging with one rank for each position, and its costs. Compute actions take as long as the
/// largest slice, messages as long as on the rank that has most. One more rank, without compute actions, stands for all
/// callers.
class FoldedPipeline {
 public:
  /// @param slice         [stage] samples, the largest of any replica
  /// @param microbatches  number in which a replica has samples @pre the arguments outlive it
  FoldedPipeline(const Workload& work, const Staging& staging, const SizedPipeline& sized,
                 std::vector<std::int64_t> slice, int microbatches, const StagingCosts& costs)
      : costs_(costs), messages_(work, sized, std::move(slice)) {
    const auto positions = staging.replicas_of_positions().size();
    for (int s = 0; s < staging.stages(); ++s) pipeline_.stages.push_back({Rank(staging.position(s))});
    layout_ = {std::vector<std::int64_t>(positions, 0), microbatches};
    layout_.local.push_back(microbatches);
    pipeline_.ranks = static_cast<int>(layout_.local.size());
    const bool callers_run_it = staging.stages() == 1 && staging.replicas.front() == sized.pipeline.ranks;
    for (std::size_t c = 0; c < sized.channels.size(); ++c) {
      const Channel& channel = sized.pipeline.channels[c];
      const bool inside = channel.from.valid() && channel.to.valid();
      // Every caller has unbatched values, or gets them by itself.
      if (!inside && (callers_run_it || channel.kind != ChannelKind::kBatched)) continue;
      if (!channel.from.valid() && !channel.to.valid()) continue;
      pipeline_.channels.push_back(channel);
      channel_.push_back(c);
    }
  }

  [[nodiscard]] const Pipeline& pipeline() const { return pipeline_; }
  [[nodiscard]] const BatchLayout& layout() const { return layout_; }

  [[nodiscard]] Seconds forward(StageId stage, std::int64_t) const { return costs_.forward(stage, slice(stage)); }
  [[nodiscard]] Seconds backward(StageId stage, std::int64_t) const { return costs_.backward(stage, slice(stage)); }
  [[nodiscard]] Seconds backward_input(StageId stage, std::int64_t) const {
    return costs_.backward_input(stage, slice(stage));
  }
  [[nodiscard]] Seconds backward_weight(StageId stage, std::int64_t) const {
    return costs_.backward_weight(stage, slice(stage));
  }
  [[nodiscard]] Seconds message(Rank, const Action& action) const {
    return messages_.over(channel_[static_cast<std::size_t>(action.channel)], action.flow);
  }
  [[nodiscard]] Seconds reduce(const Action&) const { return {}; }  // it has no groups

 private:
  [[nodiscard]] std::int64_t slice(StageId stage) const { return messages_.slice(stage); }

  const StagingCosts& costs_;
  RankMessages messages_;
  Pipeline pipeline_;
  BatchLayout layout_;
  std::vector<std::size_t> channel_;  // of the staging, by the folded pipeline's
};
static_assert(SplitBackwardCosts<FoldedPipeline>);

/// The timeline of a folded pipeline, to which gradient sums are added. Buckets count as equally large.
class FoldedTimeline {
 public:
  /// @param orders  [rank] of a synthesised schedule, else none
  /// @pre the workload, the staging and its pipeline outlive it
  FoldedTimeline(const Workload& work, const Staging& staging, const SizedPipeline& sized,
                 std::vector<std::int64_t> slice, int microbatches,
                 const std::vector<std::vector<ComputeAction>>& orders, const StagingCosts& costs)
      : staging_(staging),
        sized_(sized),
        costs_(costs),
        last_(staging.replicas.size()),
        positions_(staging.replicas_of_positions().size()) {
    const FoldedPipeline folded(work, staging, sized, std::move(slice), microbatches, costs_);
    GivenOrders given{orders, staging.microbatches};
    if (!orders.empty()) given.orders = of_positions(orders, static_cast<std::size_t>(folded.pipeline().ranks));
    for (const Phase phase : phases(work.loss_mode)) {
      const Program program = make_program(folded.pipeline(), folded.layout(), staging.schedule, phase, given);
      read(program, simulate(folded.pipeline(), program, folded));
    }
  }

  [[nodiscard]] bool holds_for(const StagingCosts& costs) const { return costs_.computes_last_as_long(costs); }

  /// The timeline with these gradient sums; every rank does what its position does.
  [[nodiscard]] CallTimeline timeline(const StagingCosts& costs) const {
    std::vector<double> free_at(positions_.size(), 0), summing(positions_.size(), 0);
    const std::vector<std::size_t> position_of = positions_of_ranks();
    for (std::size_t g = 0; g < sized_.pipeline.groups.size(); ++g) {
      const ReduceGroup& group = sized_.pipeline.groups[g];
      // Tensor shards sum at the same time, each with its own replicas.
      const bool is_first =
          !group.stage.valid() ||
          std::ranges::binary_search(group.ranks, sized_.pipeline.stages[group.stage.index()].rank(0));
      if (!is_first) continue;
      std::vector<std::size_t> positions;
      for (const Rank rank : group.ranks) positions.push_back(position_of[rank.index()]);
      std::sort(positions.begin(), positions.end());
      positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
      const auto& buckets = costs.summed_at_end(g);
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
    double computed = 0;  // end of the last compute action
    double end = 0;       // of the last compute action or message
  };

  /// Adds one phase after the other.
  void read(const Program& program, const Timeline& timeline) {
    const double before = begin_;
    for (std::size_t p = 0; p < positions_.size(); ++p) {
      Position& mine = positions_[p];
      mine.busy += timeline.busy[p].value();
      for (std::size_t i = 0; i < program.ranks[p].size(); ++i) {
        const Action& action = program.ranks[p][i];
        const double start = before + timeline.spans[p][i].start.value(),
                     end = before + timeline.spans[p][i].end.value();
        mine.end = std::max(mine.end, end);
        if (is_compute(action.kind))
          mine.computed = std::max(mine.computed, end);
        else
          mine.communicating += end - start;
        if (gives_weight_gradients(action.kind)) last_[action.stage.index()] = {start, end};
      }
    }
    begin_ += timeline.step.value();
  }

  [[nodiscard]] CallTimeline of_ranks(const std::vector<std::size_t>& position_of, const std::vector<double>& free_at,
                                      const std::vector<double>& summing) const {
    CallTimeline out(position_of.size());
    for (const Mesh& mesh : sized_.pipeline.stages) {
      for (const Rank rank : mesh.ranks()) {
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
      for (const Rank rank : sized_.pipeline.stages[s].ranks()) position_of[rank.index()] = position(s);
    }
    return position_of;
  }
  /// The orders of the first rank at each position. @param ranks  of the folded pipeline
  [[nodiscard]] std::vector<std::vector<ComputeAction>> of_positions(
      const std::vector<std::vector<ComputeAction>>& orders, std::size_t ranks) const {
    std::vector<std::vector<ComputeAction>> out(ranks);
    for (std::size_t s = 0; s < last_.size(); ++s) out[position(s)] = orders[sized_.pipeline.stages[s].rank(0).index()];
    return out;
  }
  [[nodiscard]] std::size_t position(std::size_t stage) const {
    return static_cast<std::size_t>(staging_.position(static_cast<int>(stage)));
  }

  const Staging& staging_;
  const SizedPipeline& sized_;
  StagingCosts costs_;      // with which it was simulated
  std::vector<Last> last_;  // by stage: backward
  std::vector<Position> positions_;
  double begin_ = 0;  // of the phase that comes next
};

}  // namespace autopar::detail
