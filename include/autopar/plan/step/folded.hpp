#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include <autopar/plan/memory/memory.hpp>
#include <autopar/plan/step/timeline.hpp>

namespace autopar::detail {

/// The pipeline of a staging with one rank for each position.
[[nodiscard]] inline Pipeline one_rank_a_position(const Staging& staging) {
  Pipeline pipeline;
  pipeline.ranks = static_cast<int>(staging.replicas_of_positions().size());
  for (int s = 0; s < staging.stages(); ++s) pipeline.stages.push_back({Rank(staging.position(s))});
  return pipeline;
}

/// The most micro-batches in which one replica has samples.
[[nodiscard]] inline int busy_times(const Staging& staging, const SliceTable& slices) {
  int times = 1;
  for (const int replicas : staging.replicas)
    times = std::max(times, slices.at(staging.microbatches, replicas, staging.stages()).busy_times());
  return times;
}

/// The pipeline of a staging with one rank for each position, and its costs. Compute actions take as long as the
/// largest slice. Messages take as long as those of a micro-batch over one channel, one after the other, on the rank
/// that has most of them. One more rank, without compute actions, stands for all callers.
class FoldedPipeline {
 public:
  /// @pre the arguments outlive it
  FoldedPipeline(const Workload& work, const Staging& staging, const SizedPipeline& sized, const SliceTable& slices,
                 int microbatches, const StagingCosts& costs)
      : work_(work),
        sized_(sized),
        costs_(costs),
        slice_(largest_slices(staging, slices)),
        pipeline_(one_rank_a_position(staging)),
        layout_{std::vector<std::int64_t>(static_cast<std::size_t>(pipeline_.ranks), 0), microbatches} {
    layout_.local.push_back(microbatches);
    ++pipeline_.ranks;
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
    known_.resize(2 * channel_.size());
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
  [[nodiscard]] double message_delay() const { return costs_.message_delay(); }
  [[nodiscard]] Seconds beside_reductions(StageId stage, Seconds alone) const {
    return costs_.beside_reductions(stage, alone);
  }
  [[nodiscard]] Seconds message(Rank, const Action& action) const {
    const auto c = static_cast<std::size_t>(action.channel);
    auto& known = known_[2 * c + (action.flow == Flow::kGradient ? 1 : 0)];
    if (!known) known = messages(channel_[c], action.flow);
    return *known;
  }
  [[nodiscard]] Seconds reduce(const Action&) const { return {}; }  // it has no groups
  [[nodiscard]] Seconds reduce_beside(const Action&, Seconds) const { return {}; }

 private:
  [[nodiscard]] Seconds messages(std::size_t c, Flow flow) const {
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

  [[nodiscard]] std::int64_t slice(StageId stage) const { return slice_[stage.index()]; }

  const Workload& work_;
  const SizedPipeline& sized_;
  const StagingCosts& costs_;
  std::vector<std::int64_t> slice_;  // [stage] samples, the largest of any replica
  Pipeline pipeline_;
  BatchLayout layout_;
  std::vector<std::size_t> channel_;                   // of the staging, by the folded pipeline's
  mutable std::vector<std::optional<Seconds>> known_;  // [2 * channel + flow]
};
static_assert(SplitBackwardCosts<FoldedPipeline> && ContendingCosts<FoldedPipeline>);

/// The timeline of a folded pipeline, to which gradient sums are added. Buckets count as equally large.
class FoldedTimeline {
 public:
  /// @param orders  [rank] of a synthesised schedule, else none
  /// @pre the workload, the staging and its pipeline outlive it
  FoldedTimeline(const Workload& work, const Staging& staging, const SizedPipeline& sized, const SliceTable& slices,
                 const Orders& orders, const StagingCosts& costs)
      : staging_(staging), sized_(sized), costs_(costs), last_(staging.replicas.size()) {
    const FoldedPipeline folded(work, staging, sized, slices, busy_times(staging, slices), costs_);
    GivenOrders given{orders, staging.microbatches};
    const auto ranks = static_cast<std::size_t>(folded.pipeline().ranks);
    if (!orders.empty()) given.orders = of_positions(orders, ranks);
    positions_ = CallTimeline(ranks);
    computed_.resize(ranks);
    for (const Phase phase : phases(work.loss_mode)) {
      const Program program = make_program(folded.pipeline(), folded.layout(), staging.schedule, phase, given);
      read(program, simulate(folded.pipeline(), program, folded));
    }
  }

  [[nodiscard]] bool holds_for(const StagingCosts& costs) const { return costs_.computes_last_as_long(costs); }

  /// The timeline with these gradient sums; every rank does what its position does.
  [[nodiscard]] CallTimeline timeline(const StagingCosts& costs) const {
    std::vector<double> free_at(computed_.size(), 0), summing(computed_.size(), 0);
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
      make_set(positions);
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
      double summed = each * group.buckets;
      if (group.stage.valid()) {
        const Seconds computing(std::max(0.0, last - first));
        summed = costs.sums_beside(group.stage, Seconds(summed), computing).value();
      }
      const double end = std::max(first + summed, last + each);
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
  /// Adds one phase after the other.
  void read(const Program& program, const Timeline& timeline) {
    const double before = positions_.step.value();
    positions_.add(program, timeline);
    for (std::size_t p = 0; p < computed_.size(); ++p) {
      for (std::size_t i = 0; i < program.ranks[p].size(); ++i) {
        const Action& action = program.ranks[p][i];
        const Span& span = timeline.spans[p][i];
        const double end = before + span.end.value();
        if (is_compute(action.kind)) computed_[p] = std::max(computed_[p], end);
        if (gives_weight_gradients(action.kind)) last_[action.stage.index()] = {before + span.start.value(), end};
      }
    }
  }

  [[nodiscard]] CallTimeline of_ranks(const std::vector<std::size_t>& position_of, const std::vector<double>& free_at,
                                      const std::vector<double>& summing) const {
    CallTimeline out(position_of.size());
    for (const Mesh& mesh : sized_.pipeline.stages) {
      for (const Rank rank : mesh.ranks()) {
        const std::size_t r = rank.index(), p = position_of[r];
        out.busy[r] = positions_.busy[p];
        out.end[r] = std::max(positions_.end[p], Seconds(free_at[p]));
        out.communicating[r] = positions_.communicating[p];
        out.summing[r] = Seconds(summing[p]);
        out.step = std::max(out.step, out.end[r]);
      }
    }
    return out;
  }

  [[nodiscard]] double filled(const ReduceGroup& group, std::size_t p, int b) const {
    if (!group.stage.valid()) return computed_[p];
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
  [[nodiscard]] Orders of_positions(const Orders& orders, std::size_t ranks) const {
    Orders out(ranks);
    for (std::size_t s = 0; s < last_.size(); ++s) out[position(s)] = orders[sized_.pipeline.stages[s].rank(0).index()];
    return out;
  }
  [[nodiscard]] std::size_t position(std::size_t stage) const {
    return static_cast<std::size_t>(staging_.position(static_cast<int>(stage)));
  }

  const Staging& staging_;
  const SizedPipeline& sized_;
  StagingCosts costs_;            // with which it was simulated
  std::vector<Last> last_;        // by stage: backward
  CallTimeline positions_{0};     // without sums
  std::vector<double> computed_;  // by position: end of the last compute action
};

}  // namespace autopar::detail
