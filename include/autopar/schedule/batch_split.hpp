#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// A rank's slice of a micro-batch in some stage. `samples` may be empty.
struct MicrobatchSlice {
  Rank rank;
  Interval samples;
  friend bool operator==(const MicrobatchSlice&, const MicrobatchSlice&) = default;
};

/// One message of a channel. `samples` is empty for replicated values, partial sums and totals, which are sent whole.
/// `from == to` is a copy within a rank.
struct Route {
  Rank from;
  Rank to;
  Interval samples;
  friend bool operator==(const Route&, const Route&) = default;
};

/// Where piece `m` of `microbatches` begins in a rank's local batch of `samples`. Pieces are as equal as possible. The
/// remainder is carried from rank to rank (`first` = samples of the ranks before). Micro-batches of equal ranks thus
/// differ by at most one sample, and ranks with one sample each still fill many of them.
[[nodiscard]] constexpr std::int64_t piece_begin(std::int64_t samples, std::int64_t first, std::int64_t m,
                                                 std::int64_t microbatches) {
  return (samples * m + first % microbatches) / microbatches;
}

namespace detail {

inline void check_stages(const Pipeline& pipeline) {
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
    const auto stage = "pipeline: stage " + std::to_string(s);
    if (pipeline.stages[s].empty()) throw InvalidArgument(stage + " has no rank; give it at least one");
    std::set<Rank> ranks;
    for (const Rank rank : pipeline.stages[s].ranks()) {
      const auto who = stage + " has rank " + std::to_string(rank.value());
      if (!rank.valid() || rank.value() >= pipeline.ranks)
        throw InvalidArgument(who + ", but ranks are 0 to " + std::to_string(pipeline.ranks - 1));
      if (!ranks.insert(rank).second) throw InvalidArgument(who + " twice; a rank runs at most one replica of a stage");
    }
  }
}

inline void check_channels(const Pipeline& pipeline) {
  const auto stages = static_cast<int>(pipeline.stages.size());
  const auto position = [&](StageId stage) {
    if (stage == kSource) return -1;
    if (stage == kSink) return stages;
    return stage.valid() && stage.value() < stages ? stage.value() : -2;
  };
  for (std::size_t c = 0; c < pipeline.channels.size(); ++c) {
    const Channel& channel = pipeline.channels[c];
    const auto name = "pipeline: channel " + std::to_string(c);
    const int from = position(channel.from), to = position(channel.to);
    if (from == -2 || to == -2) throw InvalidArgument(name + " joins a stage that does not exist");
    if (from >= to) throw InvalidArgument(name + " must go from an earlier to a later stage");
    if (channel.kind != ChannelKind::kBatched && channel.to == kSink) {
      throw InvalidArgument(name + " brings replicated values or partial sums to the sink; reduce them over all ranks");
    }
    const bool adds = channel.kind == ChannelKind::kPartialSum || channel.kind == ChannelKind::kTotal;
    if (adds && channel.from == kSource) {
      throw InvalidArgument(name + " brings partial sums from the source; inputs are batched or replicated");
    }
  }
}

inline void check_groups(const Pipeline& pipeline) {
  for (std::size_t g = 0; g < pipeline.groups.size(); ++g) {
    const ReduceGroup& group = pipeline.groups[g];
    const auto name = "pipeline: reduction group " + std::to_string(g);
    if (group.ranks.size() < 2) throw InvalidArgument(name + " has fewer than two ranks; leave it out");
    if (group.buckets < 0) throw InvalidArgument(name + " has " + std::to_string(group.buckets) + " buckets");
    const bool has_stage = group.stage.valid() && group.stage.index() < pipeline.stages.size();
    if (!has_stage && (group.stage.valid() || group.zero >= 2)) {
      throw InvalidArgument(name + " belongs to a stage that does not exist");
    }
    for (std::size_t i = 0; i < group.ranks.size(); ++i) {
      const Rank rank = group.ranks[i];
      if (!rank.valid() || rank.value() >= pipeline.ranks || (i > 0 && rank <= group.ranks[i - 1])) {
        throw InvalidArgument(name + " must list ranks in ascending order, each once and below " +
                              std::to_string(pipeline.ranks));
      }
    }
    if (group.zero < 2) continue;
    const Mesh& mesh = pipeline.stages[group.stage.index()];
    const auto shard = mesh.shard_of(group.ranks.front());
    auto replicas = shard ? mesh.replica_group(*shard) : std::vector<Rank>{};
    std::sort(replicas.begin(), replicas.end());
    if (replicas != group.ranks) {
      throw InvalidArgument(name +
                            " gathers or sums within compute actions; it must have all replicas of a tensor shard of "
                            "its stage as its members, and no others");
    }
  }
}

inline void check_backward_gathers(const Pipeline& pipeline) {
  if (pipeline.backward_gathers.size() > pipeline.stages.size()) {
    throw InvalidArgument("pipeline: gatherings of backwards are listed for " +
                          std::to_string(pipeline.backward_gathers.size()) + " stages of " +
                          std::to_string(pipeline.stages.size()));
  }
  for (std::size_t s = 0; s < pipeline.backward_gathers.size(); ++s) {
    const auto& listed = pipeline.backward_gathers[s];
    if (listed.empty()) continue;
    std::set<int> gathered;
    for (std::size_t g = 0; g < pipeline.groups.size(); ++g) {
      if (pipeline.groups[g].stage == StageId::of(s) && gathers_in_computes(pipeline.groups[g]))
        gathered.insert(static_cast<int>(g));
    }
    const auto stage = "pipeline: backwards of stage " + std::to_string(s);
    for (const int g : listed) {
      if (gathered.contains(g)) continue;
      throw InvalidArgument(stage + " are to gather group " + std::to_string(g) +
                            ", which is not gathered within its compute actions");
    }
    for (const int g : gathered) {
      if (std::ranges::find(listed, g) != listed.end()) continue;
      throw InvalidArgument(stage + " leave out group " + std::to_string(g) +
                            ", which is gathered within its compute actions");
    }
  }
}

inline void check_layout(const Pipeline& pipeline, const BatchLayout& layout) {
  if (layout.local.size() != static_cast<std::size_t>(pipeline.ranks)) {
    throw InvalidArgument("batch layout: " + std::to_string(layout.local.size()) + " local batches for " +
                          std::to_string(pipeline.ranks) + " ranks");
  }
  if (layout.microbatches < 1) {
    throw InvalidArgument("batch layout: " + std::to_string(layout.microbatches) + " micro-batches; at least 1");
  }
  for (std::size_t r = 0; r < layout.local.size(); ++r) {
    if (layout.local[r] < 0) {
      throw InvalidArgument("batch layout: rank " + std::to_string(r) + " has " + std::to_string(layout.local[r]) +
                            " samples");
    }
  }
}

}  // namespace detail

/// The samples of every rank, stage and micro-batch of a call. Programs, engines and checks share this arithmetic.
///
/// The global batch is the concatenation of the ranks' local batches in rank order. Micro-batch m concatenates, in rank
/// order, one piece of each local batch. A piece begins at `piece_begin(b, first, m, M)` (b samples, M micro-batches).
/// A stage with R replicas divides the B samples of a micro-batch into [B*q/R, B*(q+1)/R). If every stage has a replica
/// on every rank, each rank keeps its own piece instead, so that no input is sent. Source and sink also hold each
/// rank's own piece.
///
/// Results that are not batched do not go through the sink: the session reduces or broadcasts them over all ranks. An
/// argument that all ranks share is taken from the rank itself; the session reduces its gradient.
class BatchSplit {
 public:
  /// @throws InvalidArgument, with the malformed entry, if the pipeline or the layout is malformed
  /// @cost O(microbatches * ranks)
  BatchSplit(const Pipeline& pipeline, const BatchLayout& layout) : layout_(layout), stages_(pipeline.stages) {
    expect(pipeline.ranks >= 1, "pipeline: at least one rank is needed");
    detail::check_stages(pipeline);
    detail::check_channels(pipeline);
    detail::check_groups(pipeline);
    detail::check_backward_gathers(pipeline);
    detail::check_layout(pipeline, layout);
    std::vector<Rank> everyone;
    for (int r = 0; r < pipeline.ranks; ++r) everyone.emplace_back(r);
    everyone_ = Mesh(std::move(everyone));
    keeps_pieces_ = !stages_.empty() && stages_[0].replicas() == pipeline.ranks &&
                    std::all_of(stages_.begin(), stages_.end(), [&](const auto& stage) { return stage == stages_[0]; });
    std::int64_t first = 0;
    for (const auto samples : layout_.local) {
      first_of_rank_.push_back(first);
      first += samples;
    }
    ends_.resize(static_cast<std::size_t>(layout_.microbatches));
    for (int m = 0; m < layout_.microbatches; ++m) {
      std::int64_t end = 0;
      for (int r = 0; r < pipeline.ranks; ++r) {
        end += local(Rank(r), m).size();
        ends_[static_cast<std::size_t>(m)].push_back(end);
      }
    }
  }

  [[nodiscard]] int microbatches() const { return layout_.microbatches; }
  [[nodiscard]] int ranks() const { return static_cast<int>(layout_.local.size()); }

  /// Samples of micro-batch `m`, over all ranks.
  [[nodiscard]] std::int64_t size(int m) const { return ends(m).back(); }

  /// A rank's piece, in indices of its local batch.
  [[nodiscard]] Interval local(Rank rank, int m) const {
    const auto b = layout_.local[rank.index()];
    const auto first = first_of_rank_[rank.index()];
    return {piece_begin(b, first, m, microbatches()), piece_begin(b, first, m + 1, microbatches())};
  }

  /// A rank's piece, in indices of the micro-batch.
  [[nodiscard]] Interval piece(Rank rank, int m) const {
    const auto& piece_ends = ends(m);
    return {rank.value() == 0 ? 0 : piece_ends[rank.index() - 1], piece_ends[rank.index()]};
  }

  /// The samples of micro-batch `m` that replica `q` of a stage runs, on each of its tensor shards. For source and
  /// sink, `q` is the rank.
  [[nodiscard]] Interval slice(StageId stage, int q, int m) const {
    if (stage == kSource || stage == kSink) return piece(Rank(q), m);
    if (keeps_pieces_) return piece(stages_[0].rank(q), m);
    const std::int64_t replicas = stages_[stage.index()].replicas();
    return {size(m) * q / replicas, size(m) * (q + 1) / replicas};
  }

  /// The nonempty slices of all ranks of a stage, ascending by samples, then by tensor shard.
  [[nodiscard]] std::vector<MicrobatchSlice> slices(StageId stage, int m) const {
    std::vector<MicrobatchSlice> out;
    for (const auto& [replica, samples] : replica_slices(stage, m)) {
      for (int t = 0; t < mesh(stage).tensor(); ++t) out.push_back({mesh(stage).rank(replica, t), samples});
    }
    return out;
  }

  /// The index in the global batch of an interval's first sample. It is the key of random draws, which differs between
  /// disjoint intervals of a call.
  /// @pre samples is not empty and within micro-batch `m`
  [[nodiscard]] std::int64_t first_global_sample(int m, Interval samples) const {
    const auto& piece_ends = ends(m);
    const auto holder = std::upper_bound(piece_ends.begin(), piece_ends.end(), samples.begin) - piece_ends.begin();
    const Rank rank(static_cast<std::int32_t>(holder));
    return first_of_rank_[rank.index()] + local(rank, m).begin + samples.begin - piece(rank, m).begin;
  }

  /// The messages of a channel for one micro-batch, from holders to readers of values. Gradients take the same routes
  /// back. Holders and readers with an empty slice take no part. A channel that is not differentiable has no gradient
  /// routes.
  ///
  /// - Batched: the intersections of both splits.
  /// - Replicated: reader i receives from holder i mod n. An argument comes from the reader itself.
  /// - Partial sums: holder i sends its addend to reader i mod n, so a reader may receive several or none.
  /// - Totals: every holder sends its addend to every reader.
  ///
  /// Tensor shards of a replica hold identical copies of values and gradients that are sent. Shard t of the receiver
  /// receives one copy, from shard t mod T of the sender.
  [[nodiscard]] std::vector<Route> routes(const Channel& channel, int m, Flow flow) const {
    if (flow == Flow::kGradient && !channel.differentiable) return {};
    const Mesh& from = mesh(channel.from);
    const Mesh& to = mesh(channel.to);
    const bool is_argument = channel.from == kSource && channel.kind == ChannelKind::kReplicated;
    const int copies = flow == Flow::kValue ? to.tensor() : from.tensor();
    std::vector<Route> out;
    for (const auto& [holder, reader] : pairs(channel, m)) {
      const auto samples =
          channel.kind == ChannelKind::kBatched ? intersect(holder.samples, reader.samples) : Interval{};
      for (int t = 0; t < copies; ++t) {
        const Rank reads = to.rank(reader.replica, t % to.tensor());
        const Rank holds = is_argument ? reads : from.rank(holder.replica, t % from.tensor());
        out.push_back(flow == Flow::kValue ? Route{holds, reads, samples} : Route{reads, holds, samples});
      }
    }
    return out;
  }

  /// Whether every stage is on all ranks in the same order, so that inputs and results are not moved.
  [[nodiscard]] bool keeps_pieces() const { return keeps_pieces_; }

 private:
  [[nodiscard]] const std::vector<std::int64_t>& ends(int m) const { return ends_[static_cast<std::size_t>(m)]; }
  [[nodiscard]] const Mesh& mesh(StageId stage) const { return stage.valid() ? stages_[stage.index()] : everyone_; }

  struct ReplicaSlice {
    int replica;
    Interval samples;
  };
  [[nodiscard]] std::vector<ReplicaSlice> replica_slices(StageId stage, int m) const {
    std::vector<ReplicaSlice> out;
    for (int q = 0; q < mesh(stage).replicas(); ++q) {
      if (const auto samples = slice(stage, q, m); !samples.empty()) out.push_back({q, samples});
    }
    std::ranges::sort(out, {}, [](const ReplicaSlice& each) { return each.samples.begin; });
    return out;
  }

  /// The replicas that hold a message of a channel, and the replicas that read it.
  [[nodiscard]] std::vector<std::pair<ReplicaSlice, ReplicaSlice>> pairs(const Channel& channel, int m) const {
    const auto holders = replica_slices(channel.from, m);
    const auto readers = replica_slices(channel.to, m);
    std::vector<std::pair<ReplicaSlice, ReplicaSlice>> out;
    if (channel.kind == ChannelKind::kBatched) {
      for (std::size_t h = 0, r = 0; h < holders.size() && r < readers.size();) {
        const auto holds = holders[h].samples, reads = readers[r].samples;
        if (!intersect(holds, reads).empty()) out.emplace_back(holders[h], readers[r]);
        if (holds.end <= reads.end)
          ++h;
        else
          ++r;
      }
    } else if (channel.kind == ChannelKind::kReplicated) {
      for (std::size_t r = 0; r < readers.size(); ++r) out.emplace_back(holders[r % holders.size()], readers[r]);
    } else if (channel.kind == ChannelKind::kPartialSum) {
      for (std::size_t h = 0; h < holders.size(); ++h) out.emplace_back(holders[h], readers[h % readers.size()]);
    } else {
      for (const ReplicaSlice& holder : holders) {
        for (const ReplicaSlice& reader : readers) out.emplace_back(holder, reader);
      }
    }
    return out;
  }

  BatchLayout layout_;
  std::vector<Mesh> stages_;
  Mesh everyone_;  // the source and the sink
  bool keeps_pieces_ = false;
  std::vector<std::int64_t> first_of_rank_;      // index in the global batch of each rank's first sample
  std::vector<std::vector<std::int64_t>> ends_;  // [microbatch][rank]: end of the rank's piece
};

}  // namespace autopar
