#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// Gradients are summed in buckets of about this size: large enough for the links, small enough to overlap.
inline constexpr Bytes kBucketBytes{32 << 20};

/// Of what ZeRO 3 gathers for a segment that is recomputed, so much stays for its backward: what was read last. The
/// rest is let go of and gathered once more.
inline constexpr Bytes kKeptForBackward = kBucketBytes * 8;

/// A pipeline with what its channels and buckets carry, as far as costs need it.
struct SizedPipeline {
  struct ChannelSize {
    Affine value;     ///< bytes of one message that carries n samples
    Affine gradient;  ///< likewise, back
    Affine held;      ///< of the values, those that their makers would not keep anyway
    int values = 0;   ///< one travels as it is, several are packed into one message
  };
  Pipeline pipeline;
  std::vector<ChannelSize> channels;             ///< by channel
  std::vector<std::vector<Bytes>> bucket_bytes;  ///< [group][bucket]
};

namespace detail {

/// Collects values by (from, to, kind), each value once a channel.
class ChannelCollector {
 public:
  void add(StageId from, StageId to, std::int32_t value, const Affine& bytes, bool differentiable, bool kept = false) {
    if (from == to) return;
    const ChannelKind kind = bytes.per_sample != 0 ? ChannelKind::kBatched : ChannelKind::kReplicated;
    if (to == kSink && kind != ChannelKind::kBatched) return;  // results that are not batched are summed by the session
    auto& entry = channels_[{order(from), order(to), kind}];
    entry.from = from;
    entry.to = to;
    if (entry.values.insert(value).second) {
      ++entry.size.values;
      entry.size.value += bytes;
      if (!kept) entry.size.held += bytes;
    }
    if (differentiable && entry.gradients.insert(value).second) entry.size.gradient += bytes;
    entry.differentiable |= differentiable;
  }
  void move_into(SizedPipeline& out) const {
    for (const auto& [key, entry] : channels_) {
      out.pipeline.channels.push_back({entry.from, entry.to, std::get<2>(key), entry.differentiable});
      out.channels.push_back(entry.size);
    }
  }

 private:
  struct Entry {
    StageId from, to;
    std::set<std::int32_t> values, gradients;
    SizedPipeline::ChannelSize size;
    bool differentiable = false;
  };
  static int order(StageId stage) {
    return stage == kSource ? -1 : stage == kSink ? std::numeric_limits<int>::max() : stage.value();
  }
  std::map<std::tuple<int, int, ChannelKind>, Entry> channels_;
};

/// Parameters in the order in which their gradients are complete (last reader first), cut into buckets.
inline void add_group(SizedPipeline& out, const Workload& work, std::vector<Rank> ranks, StageId stage,
                      const std::vector<ParameterId>& in_backward_order) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());  // tied stages may share ranks
  if (ranks.size() < 2 || in_backward_order.empty()) return;
  std::vector<Bytes> sizes;
  for (const ParameterId parameter : in_backward_order) {
    if (sizes.empty() || sizes.back() >= kBucketBytes) sizes.emplace_back(0);
    sizes.back() += work.parameters[parameter.index()].bytes;
  }
  out.pipeline.groups.push_back({std::move(ranks), stage, static_cast<int>(sizes.size())});
  out.bucket_bytes.push_back(std::move(sizes));
}

/// The stages that read a trainable parameter.
struct ReadingStages {
  static constexpr int kNone = -1, kSeveral = -2;
  std::vector<int> only;                      ///< [parameter] the stage, if it is one
  std::map<std::size_t, std::set<int>> tied;  ///< [parameter] all of several
};
[[nodiscard]] inline ReadingStages stages_of_parameters(const Workload& work, const Staging& staging) {
  ReadingStages out{std::vector<int>(work.parameters.size(), ReadingStages::kNone), {}};
  for (const NodeId node : work.graph.nodes()) {
    const int stage = staging.stage_of[node.index()];
    for (const ParameterId parameter : work.graph[node].parameters) {
      const std::size_t p = parameter.index();
      if (!work.parameters[p].trainable || out.only[p] == stage) continue;
      if (out.only[p] == ReadingStages::kNone) {
        out.only[p] = stage;
        continue;
      }
      if (out.only[p] >= 0) out.tied[p].insert(out.only[p]);
      out.only[p] = ReadingStages::kSeveral;
      out.tied[p].insert(stage);
    }
  }
  return out;
}

inline void add_groups(SizedPipeline& out, const Workload& work, const Staging& staging) {
  const ReadingStages stages = stages_of_parameters(work, staging);
  std::vector<std::vector<ParameterId>> own(staging.replicas.size());
  std::map<std::vector<int>, std::vector<ParameterId>> tied;  // by the stages that share them
  // The first trainable use in forward order is the last to get its gradient; parameter ids follow construction, which
  // is as good an order as any and is known to every rank.
  for (std::size_t p = stages.only.size(); p-- > 0;) {
    if (stages.only[p] >= 0) own[static_cast<std::size_t>(stages.only[p])].push_back(ParameterId::of(p));
    if (stages.only[p] != ReadingStages::kSeveral) continue;
    const auto& readers = stages.tied.at(p);
    tied[{readers.begin(), readers.end()}].push_back(ParameterId::of(p));
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    // Of stages that share ranks, the later one's backwards end first.
    const std::size_t s = staging.position_of.empty() ? i : own.size() - 1 - i;
    const Mesh& mesh = out.pipeline.stages[s];
    for (int t = 0; t < mesh.tensor(); ++t) add_group(out, work, mesh.replica_group(t), StageId::of(s), own[s]);
  }
  for (const auto& [holders, parameters] : tied) {
    std::vector<Rank> ranks;
    for (const int s : holders) {
      const auto& more = out.pipeline.stages[static_cast<std::size_t>(s)].ranks();
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
    add_group(out, work, std::move(ranks), StageId::none(), parameters);
  }
}

}  // namespace detail

/// The pipeline that a staging describes, on `world` ranks.
///
/// A value that two stages read travels to each of them directly from its maker. Values whose size does not depend on
/// the samples are taken as replicated.
[[nodiscard]] inline SizedPipeline make_pipeline(const Workload& work, const Staging& staging, std::vector<Mesh> meshes,
                                                 int world) {
  SizedPipeline out;
  out.pipeline.ranks = world;
  out.pipeline.stages = std::move(meshes);
  const auto stage_of = [&](NodeId node) { return StageId(staging.stage_of[node.index()]); };
  detail::ChannelCollector channels;
  for (const auto& input : work.inputs) {
    for (const NodeId reader : input.readers) {
      channels.add(kSource, stage_of(reader), input.value, input.bytes, input.differentiable);
    }
  }
  for (const EdgeId edge : work.graph.edges()) {
    const ValueProfile& value = work.graph[edge];
    channels.add(stage_of(work.graph.source(edge)), stage_of(work.graph.target(edge)), value.value, value.bytes,
                 value.differentiable, value.kept);
  }
  // In loss mode the only gradient that starts a backward is the loss's own.
  for (const auto& output : work.outputs) {
    channels.add(stage_of(output.writer), kSink, output.value, output.bytes, !work.loss_mode, output.kept);
  }
  channels.move_into(out);
  detail::add_groups(out, work, staging);
  return out;
}

}  // namespace autopar
