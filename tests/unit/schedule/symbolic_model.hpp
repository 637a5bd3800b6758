#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <autopar/schedule/batch_split.hpp>
#include <autopar/schedule/pipeline.hpp>

/// A model of integers modulo 2^64 for any pipeline: every stage computes, for each sample, a linear function of what
/// arrives, with weights that depend on the sample, so that a value or gradient that is lost, doubled, misrouted or
/// added to the wrong sample changes the result. Partial sums and replicated values follow the laws of their kind; a
/// total is a sum where it is made and replicated where it is read.
namespace autopar::testing {

using Word = std::uint64_t;
using Words = std::vector<Word>;

/// A fixed random number for each combination of arguments.
inline Word noise(std::int64_t a, std::int64_t b = 0, std::int64_t c = 0) {
  Word x = static_cast<Word>(a) * 0x9E3779B97F4A7C15u ^ static_cast<Word>(b) * 0xC2B2AE3D27D4EB4Fu ^
           static_cast<Word>(c) * 0x165667B19E3779F9u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return (x ^ (x >> 31)) | 1;
}

namespace weight {
inline Word in(std::size_t channel) { return noise(1, static_cast<std::int64_t>(channel)); }
inline Word out(std::size_t channel) { return noise(2, static_cast<std::int64_t>(channel)); }
inline Word bias(StageId stage, std::int64_t sample) { return noise(3, stage.value(), sample); }
inline Word constant(StageId stage) { return noise(4, stage.value()); }
inline Word loss(StageId stage) { return noise(5, stage.value()); }
inline Word loss_of_sum(StageId stage) { return noise(6, stage.value()); }
inline Word argument(std::size_t channel, std::int64_t sample) {
  return noise(7, static_cast<std::int64_t>(channel), sample);
}
inline Word shared_argument(std::size_t channel) { return noise(8, static_cast<std::int64_t>(channel)); }
inline Word result_gradient(std::size_t channel, std::int64_t sample) {
  return noise(9, static_cast<std::int64_t>(channel), sample);
}
inline Word parameter(std::size_t group, std::size_t bucket, std::int64_t sample) {
  return noise(10, static_cast<std::int64_t>(group * 100 + bucket), sample);
}
}  // namespace weight

/// How a channel's value is computed, and its gradient used, at the stage that makes it.
inline ChannelKind as_made(ChannelKind kind) { return kind == ChannelKind::kTotal ? ChannelKind::kPartialSum : kind; }
/// How its value is used, and its gradient computed, at the stage that reads it.
inline ChannelKind as_read(ChannelKind kind) { return kind == ChannelKind::kTotal ? ChannelKind::kReplicated : kind; }

/// Whether a stage's parameters are among those of a group.
inline bool contributes(const Pipeline& pipeline, std::size_t group, StageId stage) {
  const ReduceGroup& reduced = pipeline.groups[group];
  if (reduced.stage.valid()) return reduced.stage == stage;
  const auto& replicas = pipeline.stages[stage.index()].ranks();
  if (pipeline.stages[stage.index()].tensor() > 1) return false;  // its shards would add the same gradient
  return std::all_of(replicas.begin(), replicas.end(), [&](Rank rank) {
    return std::find(reduced.ranks.begin(), reduced.ranks.end(), rank) != reduced.ranks.end();
  });
}

/// One rank's part: its shares of its stages, its piece of arguments and results. Every use before the data are
/// complete, every message that comes twice, and every backward after a reduction throws std::logic_error.
class SymbolicRank {
 public:
  SymbolicRank(const Pipeline& pipeline, const BatchLayout& layout, Rank rank)
      : pipeline_(pipeline), split_(pipeline, layout), rank_(rank) {
    const auto microbatches = static_cast<std::size_t>(layout.microbatches);
    values_.resize(pipeline.channels.size(), std::vector<Ends>(microbatches));
    gradients_ = values_;
    computes_.resize(pipeline.stages.size(), std::vector<ComputeState>(microbatches));
    for (const auto& group : pipeline.groups) buckets_.emplace_back(static_cast<std::size_t>(group.buckets), Word{0});
    shares_ = buckets_;
    reduced_.resize(pipeline.groups.size());
    for (const auto& words : buckets_) {
      gathered_.emplace_back(words.size(), false);
      gathered_for_.emplace_back(words.size(), kForNoCompute);
    }
    for (std::size_t c = 0; c < values_.size(); ++c) {
      for (std::size_t m = 0; m < microbatches; ++m) fill_ends(c, static_cast<int>(m));
    }
  }

  void forward(const Action& action) {
    ComputeState& compute = this->compute(action);
    if (std::exchange(compute.forward, true)) throw std::logic_error(describe(action) + ": twice");
    require_gathered(action);
    const auto m = at(action.microbatch);
    const StageId stage = action.stage;
    Word whole = weight::constant(stage), sum = 0;
    std::vector<Word> x(static_cast<std::size_t>(split_.size(action.microbatch)), 0);
    for (auto i = action.samples.begin; i < action.samples.end; ++i) x[at(i)] = weight::bias(stage, key(action, i));
    for (std::size_t c = 0; c < values_.size(); ++c) {
      if (pipeline_.channels[c].to != stage) continue;
      require_complete(values_[c][m].in, c, action);
      const auto kind = as_read(pipeline_.channels[c].kind);
      if (kind == ChannelKind::kReplicated) whole += weight::in(c)*values_[c][m].in.words[0];
      if (kind == ChannelKind::kPartialSum) sum += weight::in(c)*values_[c][m].in.words[0];
      for (auto i = action.samples.begin; i < action.samples.end; ++i) {
        if (kind == ChannelKind::kBatched) x[at(i)] += weight::in(c)*values_[c][m].in.words[at(i)];
        if (kind == ChannelKind::kReplicated) x[at(i)] += weight::in(c)*values_[c][m].in.words[0];
      }
    }
    for (auto i = action.samples.begin; i < action.samples.end; ++i) sum += x[at(i)];
    for (std::size_t c = 0; c < values_.size(); ++c) {
      if (pipeline_.channels[c].from != stage) continue;
      produce(values_[c][m].out, as_made(pipeline_.channels[c].kind), weight::out(c), x, whole, sum);
    }
  }

  /// A whole backward or an input backward.
  /// @param with_results  gradients of results come from the sink (phase kBackward)
  void backward(const Action& action, bool with_results) {
    ComputeState& compute = this->compute(action);
    if (!compute.forward) throw std::logic_error("backward without forward");
    if (std::exchange(compute.backward, true)) throw std::logic_error(describe(action) + ": twice");
    require_gathered(action);
    const auto m = at(action.microbatch);
    require_unreduced(action);
    const StageId stage = action.stage;
    Word d_sum = weight::loss_of_sum(stage), d_whole = 0;
    std::vector<Word> dx(static_cast<std::size_t>(split_.size(action.microbatch)), 0);
    for (std::size_t c = 0; c < gradients_.size(); ++c) {
      const Channel& channel = pipeline_.channels[c];
      if (channel.from != stage || !channel.differentiable || (channel.to == kSink && !with_results)) continue;
      const Cell& came = gradients_[c][m].in;
      require_complete(came, c, action);
      if (as_made(channel.kind) == ChannelKind::kPartialSum) d_sum += weight::out(c) * came.words[0];
      if (channel.kind == ChannelKind::kReplicated) d_whole += weight::out(c) * came.words[0];
      for (auto i = action.samples.begin; channel.kind == ChannelKind::kBatched && i < action.samples.end; ++i) {
        dx[at(i)] += weight::out(c) * came.words[at(i)];
      }
    }
    Word total = d_whole;
    for (auto i = action.samples.begin; i < action.samples.end; ++i) {
      dx[at(i)] += weight::loss(stage) + d_sum;
      total += dx[at(i)];
    }
    for (std::size_t c = 0; c < gradients_.size(); ++c) {
      if (pipeline_.channels[c].to != stage || !pipeline_.channels[c].differentiable) continue;
      produce(gradients_[c][m].out, as_read(pipeline_.channels[c].kind), weight::in(c), dx, total, d_sum);
    }
    compute.dx = dx;
    compute.d_whole = d_whole;
    if (action.kind == ActionKind::kBackward) backward_weight(action);
  }

  /// The rest of a backward whose first part was an input backward.
  void backward_weight(const Action& action) {
    ComputeState& compute = this->compute(action);
    if (!compute.backward) throw std::logic_error(describe(action) + ": comes before the input backward");
    if (std::exchange(compute.weights, true)) throw std::logic_error(describe(action) + ": twice");
    if (action.kind == ActionKind::kBackwardWeight) require_gathered(action);
    require_unreduced(action);
    fill_buckets(action, compute.dx, compute.d_whole);
  }

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] const Mesh& mesh(StageId stage) const { return pipeline_.stages[stage.index()]; }
  [[nodiscard]] Words pack(const Action& action) const {
    const Cell& cell = ends(action).out;
    if (!cell.produced) throw std::logic_error(describe(action) + ": nothing to send yet");
    if (is_whole(action)) return {cell.words[0]};
    return {cell.words.begin() + action.samples.begin, cell.words.begin() + action.samples.end};
  }

  /// Number of words of a message.
  [[nodiscard]] std::size_t words(const Action& action) const {
    return is_whole(action) ? 1 : static_cast<std::size_t>(action.samples.size());
  }

  void accept(const Action& action, const Words& words) {
    Cell& cell = const_cast<Ends&>(ends(action)).in;
    if (words.size() != this->words(action)) throw std::logic_error(describe(action) + ": wrong size");
    if (is_whole(action)) {
      cell.words[0] += words[0];
      if (++cell.messages > cell.expected) throw std::logic_error(describe(action) + ": one message too many");
      return;
    }
    for (auto i = action.samples.begin; i < action.samples.end; ++i) {
      if (cell.present[at(i)]) throw std::logic_error(describe(action) + ": sample comes twice");
      cell.present[at(i)] = true;
      cell.words[at(i)] = words[at(i - action.samples.begin)];
      ++cell.messages;
    }
  }

  [[nodiscard]] Word& bucket(const Action& action) {
    return buckets_[static_cast<std::size_t>(action.group)][static_cast<std::size_t>(action.bucket)];
  }
  void start_reduction(const Action& action) { reduced_[static_cast<std::size_t>(action.group)] = true; }

  /// Takes what was added to a bucket since it was last taken; `add_to_share` gives back the sum of all members.
  [[nodiscard]] Word take_bucket(const Action& action) { return std::exchange(bucket(action), Word{0}); }
  void add_to_share(const Action& action, Word sum) { shares_[at(action.group)][at(action.bucket)] += sum; }

  [[nodiscard]] std::size_t members(const Action& collective) const {
    return pipeline_.groups[at(collective.group)].ranks.size();
  }
  /// Of this rank among them.
  [[nodiscard]] std::size_t position(const Action& collective) const {
    const auto& ranks = pipeline_.groups[at(collective.group)].ranks;
    return static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  }
  /// Whether the rank has samples in the compute action that a collective is for.
  [[nodiscard]] bool computes(const Action& collective) const {
    for (const MicrobatchSlice& share : split_.slices(collective.stage, collective.microbatch)) {
      if (share.rank == rank_) return true;
    }
    return false;
  }
  /// Buckets that a compute action gathers, in the order in which it uses them.
  template <class Visit>
  void for_each_gathered_by(const Action& compute, Visit visit) const {
    std::vector<std::pair<int, int>> order;
    const auto add = [&](std::size_t g) {
      if (!std::ranges::binary_search(pipeline_.groups[g].ranks, rank_)) return;  // another tensor shard's
      for (std::size_t b = 0; b < buckets_[g].size(); ++b) order.emplace_back(static_cast<int>(g), static_cast<int>(b));
    };
    const bool listed = compute.kind == ActionKind::kBackward && !pipeline_.backward_gathers.empty();
    for (std::size_t g = 0; !listed && g < buckets_.size(); ++g) {
      if (pipeline_.groups[g].stage == compute.stage && pipeline_.groups[g].zero >= 3) add(g);
    }
    if (listed) {
      for (const int g : pipeline_.backward_gathers[compute.stage.index()]) add(at(g));
    }
    if (compute.flow == Flow::kValue) std::reverse(order.begin(), order.end());
    for (const auto& [group, bucket] : order) visit(group, bucket);
  }

  /// The members' parameters of a bucket are there.
  void gather(const Action& action) {
    if (action.microbatch < 0)
      gathered_[at(action.group)][at(action.bucket)] = true;
    else
      gathered_for_[at(action.group)][at(action.bucket)] = {action.microbatch, action.flow};
  }

  [[nodiscard]] Word bucket(std::size_t group, std::size_t bucket) const {
    return pipeline_.groups[group].zero >= 2 ? shares_[group][bucket] : buckets_[group][bucket];
  }

  /// What arrived at this rank's sink (values) or source (gradients). @throws std::logic_error unless it is complete
  [[nodiscard]] const Words& received(std::size_t channel, int m, Flow flow) const {
    const Cell& cell = (flow == Flow::kValue ? values_ : gradients_)[channel][static_cast<std::size_t>(m)].in;
    if (cell.messages != cell.expected) throw std::logic_error("a result is incomplete");
    return cell.words;
  }

 private:
  struct Cell {
    Words words;  // batched: by position in the micro-batch; else one
    std::vector<bool> present;
    std::int64_t messages = 0, expected = 0;  // samples, if batched
    bool produced = false;
  };
  struct Ends {
    Cell in, out;
  };

  struct ComputeState {
    bool forward = false, backward = false, weights = false;
    Words dx;
    Word d_whole = 0;
  };

  [[nodiscard]] ComputeState& compute(const Action& action) {
    return computes_.at(action.stage.index()).at(at(action.microbatch));
  }

  void require_gathered(const Action& compute) {
    for (std::size_t g = 0; g < buckets_.size(); ++g) {
      const ReduceGroup& group = pipeline_.groups[g];
      const bool member = std::find(group.ranks.begin(), group.ranks.end(), rank_) != group.ranks.end();
      if (!member || group.zero == 0 || (group.stage.valid() && group.stage != compute.stage)) continue;
      for (std::size_t b = 0; b < buckets_[g].size(); ++b) {
        const bool of_compute = group.zero >= 3;
        const bool there = of_compute ? std::exchange(gathered_for_[g][b], kForNoCompute) ==
                                            std::pair(compute.microbatch, compute.flow)
                                      : gathered_[g][b] || compute.flow == Flow::kGradient;
        if (!there) throw std::logic_error(describe(compute) + ": its parameters are not there");
      }
    }
  }

  void require_unreduced(const Action& action) const {
    for (std::size_t g = 0; g < reduced_.size(); ++g) {
      const StageId stage = pipeline_.groups[g].stage;
      const bool concerned = stage == action.stage || !stage.valid();
      if (reduced_[g] && concerned) throw std::logic_error("backward after a reduction");
    }
  }

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::int64_t key(const Action& action, std::int64_t i) const {
    return split_.first_global_sample(action.microbatch, {i, i + 1});
  }
  [[nodiscard]] bool is_whole(const Action& action) const {
    return pipeline_.channels[at(action.channel)].kind != ChannelKind::kBatched;
  }
  [[nodiscard]] const Ends& ends(const Action& action) const {
    return (action.flow == Flow::kValue ? values_ : gradients_)[at(action.channel)][at(action.microbatch)];
  }

  static void require_complete(const Cell& cell, std::size_t channel, const Action& action) {
    if (cell.messages != cell.expected) {
      throw std::logic_error(describe(action) + ": channel " + std::to_string(channel) + " has not arrived");
    }
  }

  static void produce(Cell& cell, ChannelKind kind, Word factor, const Words& samples, Word whole, Word sum) {
    cell.produced = true;
    if (kind == ChannelKind::kReplicated) cell.words[0] = factor * whole;
    if (kind == ChannelKind::kPartialSum) cell.words[0] = factor * sum;
    for (std::size_t i = 0; kind == ChannelKind::kBatched && i < samples.size(); ++i) {
      cell.words[i] = factor * samples[i];
    }
  }

  void fill_ends(std::size_t c, int m) {
    const Channel& channel = pipeline_.channels[c];
    const bool batched = channel.kind == ChannelKind::kBatched;
    const auto size = batched ? at(split_.size(m)) : 1;
    for (const Flow flow : {Flow::kValue, Flow::kGradient}) {
      Ends& ends = (flow == Flow::kValue ? values_ : gradients_)[c][at(m)];
      for (Cell* cell : {&ends.in, &ends.out}) {
        cell->words.assign(size, 0);
        cell->present.assign(size, false);
      }
      for (const Route& route : split_.routes(channel, m, flow)) {
        if (route.to == rank_) ends.in.expected += batched ? route.samples.size() : 1;
      }
    }
    const Interval piece = split_.piece(rank_, m);
    Cell& arguments = values_[c][at(m)].out;
    Cell& results = gradients_[c][at(m)].out;
    arguments.produced = arguments.produced || channel.from == kSource;
    results.produced = results.produced || channel.to == kSink;
    if (!batched) {
      if (channel.from == kSource) arguments.words[0] = weight::shared_argument(c);
      return;
    }
    for (auto i = piece.begin; i < piece.end; ++i) {
      const auto sample = split_.first_global_sample(m, {i, i + 1});
      if (channel.from == kSource) arguments.words[at(i)] = weight::argument(c, sample);
      if (channel.to == kSink) results.words[at(i)] = weight::result_gradient(c, sample);
    }
  }

  void fill_buckets(const Action& action, const Words& dx, Word d_whole) {
    for (std::size_t g = 0; g < buckets_.size(); ++g) {
      const auto& members = pipeline_.groups[g].ranks;
      const bool is_member = std::find(members.begin(), members.end(), rank_) != members.end();
      if (!is_member || !contributes(pipeline_, g, action.stage)) continue;
      for (std::size_t b = 0; b < buckets_[g].size(); ++b) {
        for (auto i = action.samples.begin; i < action.samples.end; ++i) {
          buckets_[g][b] += dx[at(i)] * weight::parameter(g, b, key(action, i));
        }
        buckets_[g][b] += d_whole * weight::parameter(g, b, -1);
      }
    }
  }

  const Pipeline& pipeline_;
  BatchSplit split_;
  Rank rank_;
  std::vector<std::vector<Ends>> values_, gradients_;  // [channel][microbatch]
  std::vector<std::vector<ComputeState>> computes_;    // [stage][microbatch]
  std::vector<Words> buckets_, shares_;                // [group][bucket]
  std::vector<bool> reduced_;
  static constexpr std::pair<int, Flow> kForNoCompute{-1, Flow::kValue};
  std::vector<std::vector<bool>> gathered_;  // [group][bucket]
  std::vector<std::vector<std::pair<int, Flow>>>
      gathered_for_;  // likewise: micro-batch and direction of the compute action
};

/// The same model without ranks: whole micro-batches, stage after stage.
class SymbolicReference {
 public:
  /// @param with_results  gradients of results come from the sink
  SymbolicReference(const Pipeline& pipeline, const BatchLayout& layout, bool with_results)
      : pipeline_(pipeline), split_(pipeline, layout), with_results_(with_results) {
    for (const auto& group : pipeline.groups) buckets_.emplace_back(static_cast<std::size_t>(group.buckets), Word{0});
    for (int m = 0; m < layout.microbatches; ++m) {
      run(m);
    }
  }

  [[nodiscard]] const Words& values(std::size_t channel, int m) const {
    return values_[static_cast<std::size_t>(m)][channel];
  }
  [[nodiscard]] const Words& gradients(std::size_t channel, int m) const {
    return gradients_[static_cast<std::size_t>(m)][channel];
  }
  [[nodiscard]] Word bucket(std::size_t group, std::size_t bucket) const { return buckets_[group][bucket]; }

 private:
  void run(int m) {
    const auto size = static_cast<std::size_t>(split_.size(m));
    std::vector<Words> v, d;
    for (std::size_t c = 0; c < pipeline_.channels.size(); ++c) {
      const Channel& channel = pipeline_.channels[c];
      const bool batched = channel.kind == ChannelKind::kBatched;
      v.emplace_back(batched ? size : 1, Word{0});
      d.push_back(v.back());
      if (!batched && channel.from == kSource) v[c][0] = weight::shared_argument(c);
      for (std::size_t i = 0; batched && i < size; ++i) {
        if (channel.from == kSource) v[c][i] = weight::argument(c, sample(m, i));
        if (channel.to == kSink && with_results_ && channel.differentiable) {
          d[c][i] = weight::result_gradient(c, sample(m, i));
        }
      }
    }
    if (size > 0) {
      for (std::size_t s = 0; s < pipeline_.stages.size(); ++s) forward(StageId::of(s), m, v);
      for (std::size_t s = pipeline_.stages.size(); s-- > 0;) backward(StageId::of(s), m, d);
    }
    values_.push_back(v);
    gradients_.push_back(d);
  }

  void forward(StageId stage, int m, std::vector<Words>& v) const {
    Words x(static_cast<std::size_t>(split_.size(m)));
    Word whole = weight::constant(stage), sum = 0;
    for (std::size_t c = 0; c < v.size(); ++c) {
      if (pipeline_.channels[c].to != stage) continue;
      if (as_read(pipeline_.channels[c].kind) == ChannelKind::kReplicated) whole += weight::in(c)*v[c][0];
      if (as_read(pipeline_.channels[c].kind) == ChannelKind::kPartialSum) sum += weight::in(c)*v[c][0];
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = weight::bias(stage, sample(m, i)) + whole - weight::constant(stage);
      for (std::size_t c = 0; c < v.size(); ++c) {
        const Channel& channel = pipeline_.channels[c];
        if (channel.to == stage && channel.kind == ChannelKind::kBatched) x[i] += weight::in(c)*v[c][i];
      }
      sum += x[i];
    }
    for (std::size_t c = 0; c < v.size(); ++c) {
      const Channel& channel = pipeline_.channels[c];
      if (channel.from != stage) continue;
      for (std::size_t i = 0; i < v[c].size(); ++i) {
        v[c][i] = weight::out(c) * (channel.kind == ChannelKind::kBatched               ? x[i]
                                    : as_made(channel.kind) == ChannelKind::kReplicated ? whole
                                                                                        : sum);
      }
    }
  }

  void backward(StageId stage, int m, std::vector<Words>& d) {
    Words dx(static_cast<std::size_t>(split_.size(m)), weight::loss(stage) + weight::loss_of_sum(stage));
    Word d_sum = weight::loss_of_sum(stage), d_whole = 0;
    for (std::size_t c = 0; c < d.size(); ++c) {
      const Channel& channel = pipeline_.channels[c];
      if (channel.from != stage || !channel.differentiable) continue;
      if (as_made(channel.kind) == ChannelKind::kReplicated) d_whole += weight::out(c) * d[c][0];
      if (as_made(channel.kind) == ChannelKind::kPartialSum) d_sum += weight::out(c) * d[c][0];
      for (std::size_t i = 0; i < dx.size(); ++i) {
        if (channel.kind != ChannelKind::kReplicated) {
          dx[i] += weight::out(c) * d[c][channel.kind == ChannelKind::kBatched ? i : 0];
        }
      }
    }
    Word total = d_whole;
    for (const Word g : dx) total += g;
    for (std::size_t c = 0; c < d.size(); ++c) {
      const Channel& channel = pipeline_.channels[c];
      if (channel.to != stage || !channel.differentiable) continue;
      for (std::size_t i = 0; i < d[c].size(); ++i) {
        d[c][i] = weight::in(c) * (channel.kind == ChannelKind::kBatched               ? dx[i]
                                   : as_read(channel.kind) == ChannelKind::kReplicated ? total
                                                                                       : d_sum);
      }
    }
    add_to_buckets(stage, m, dx, d_whole);
  }

  void add_to_buckets(StageId stage, int m, const Words& dx, Word d_whole) {
    for (std::size_t g = 0; g < buckets_.size(); ++g) {
      for (std::size_t b = 0; contributes(pipeline_, g, stage) && b < buckets_[g].size(); ++b) {
        for (std::size_t i = 0; i < dx.size(); ++i) buckets_[g][b] += dx[i] * weight::parameter(g, b, sample(m, i));
        buckets_[g][b] += d_whole * weight::parameter(g, b, -1);
      }
    }
  }

  [[nodiscard]] std::int64_t sample(int m, std::size_t i) const {
    const auto position = static_cast<std::int64_t>(i);
    return split_.first_global_sample(m, {position, position + 1});
  }

  const Pipeline& pipeline_;
  BatchSplit split_;
  bool with_results_;
  std::vector<std::vector<Words>> values_, gradients_;  // [microbatch][channel]
  std::vector<Words> buckets_;
};

/// The first difference between what the ranks hold after a phase and the reference, empty if there is none.
inline std::string difference(const Pipeline& pipeline, const BatchLayout& layout, Phase phase,
                              const std::vector<SymbolicRank>& ranks) {
  const SymbolicReference reference(pipeline, layout, phase == Phase::kBackward);
  const BatchSplit split(pipeline, layout);
  for (std::size_t c = 0; c < pipeline.channels.size(); ++c) {
    const Channel& channel = pipeline.channels[c];
    for (int m = 0; m < layout.microbatches; ++m) {
      const bool to_sink = channel.to == kSink;
      const bool to_source = channel.from == kSource && travels(channel, Flow::kGradient, phase);
      Word shared = 0;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        const Interval piece = split.piece(Rank::of(r), m);
        if (channel.kind != ChannelKind::kBatched) {
          if (to_source) shared += ranks[r].received(c, m, Flow::kGradient)[0];
          continue;
        }
        for (auto i = static_cast<std::size_t>(piece.begin); i < static_cast<std::size_t>(piece.end); ++i) {
          const auto where = "channel " + std::to_string(c) + ", micro-batch " + std::to_string(m) + ", rank " +
                             std::to_string(r) + ", sample " + std::to_string(i);
          if (to_sink && ranks[r].received(c, m, Flow::kValue)[i] != reference.values(c, m)[i]) {
            return "result: " + where;
          }
          if (to_source && ranks[r].received(c, m, Flow::kGradient)[i] != reference.gradients(c, m)[i]) {
            return "argument gradient: " + where;
          }
        }
      }
      if (channel.kind != ChannelKind::kBatched && to_source && shared != reference.gradients(c, m)[0]) {
        return "gradient of a shared argument: channel " + std::to_string(c);
      }
    }
  }
  for (std::size_t g = 0; phase != Phase::kForward && g < pipeline.groups.size(); ++g) {
    for (const Rank rank : pipeline.groups[g].ranks) {
      for (std::size_t b = 0; b < static_cast<std::size_t>(pipeline.groups[g].buckets); ++b) {
        if (ranks[rank.index()].bucket(g, b) == reference.bucket(g, b)) continue;
        return "group " + std::to_string(g) + ", bucket " + std::to_string(b) + ", rank " +
               std::to_string(rank.value());
      }
    }
  }
  return {};
}

}  // namespace autopar::testing
