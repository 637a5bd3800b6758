#pragma once

#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/plan/model/parameter_groups.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// Bytes of unsharded parameters that a recomputed segment keeps for its backward under ZeRO 3: those read last. The
/// rest is resharded and gathered again.
inline constexpr Bytes kKeptForBackward{256 << 20};

/// A pipeline with the sizes of its messages and buckets.
struct SizedPipeline {
  struct ChannelSize {
    Affine value;     ///< bytes of one message that carries n samples
    Affine gradient;  ///< likewise, back
    Affine held;      ///< of the values, those that their makers would not keep anyway
    int values = 0;   ///< one value is sent as it is, several are packed into one message
  };
  Pipeline pipeline;
  std::vector<ChannelSize> channels;             ///< by channel
  std::vector<std::vector<Bytes>> bucket_bytes;  ///< [group][bucket] what is sent for its gradients
  std::vector<std::vector<Bytes>> left_whole;    ///< of these, gradients that no ZeRO level above 1 shards
  BucketPolicy buckets{};

  /// Whether a group's sharded gradients are summed within backwards.
  [[nodiscard]] bool sums_in_backwards(std::size_t group, int zero) const {
    return zero >= 2 && pipeline.groups[group].stage.valid();
  }
  /// What is summed at the end of a call, by bucket.
  [[nodiscard]] const std::vector<Bytes>& summed_at_end(std::size_t group, int zero) const {
    return sums_in_backwards(group, zero) ? left_whole[group] : bucket_bytes[group];
  }
};

namespace detail {

/// Collects values by (from, to, kind); each value counts once in a channel.
class ChannelCollector {
 public:
  void add(StageId from, StageId to, std::int32_t value, const Affine& bytes, bool differentiable, bool kept = false) {
    if (from == to) return;
    const ChannelKind kind = bytes.per_sample != 0 ? ChannelKind::kBatched : ChannelKind::kReplicated;
    if (to == kSink && kind != ChannelKind::kBatched) return;  // results that are not batched are summed by the session
    auto& [channel, size, values, gradients] = channels_[{order(from), order(to), kind}];
    channel = {from, to, kind, channel.differentiable || differentiable};
    if (values.insert(value).second) {
      ++size.values;
      size.value += bytes;
      if (!kept) size.held += bytes;
    }
    if (differentiable && gradients.insert(value).second) size.gradient += bytes;
  }
  void move_into(SizedPipeline& out) const {
    for (const auto& [key, entry] : channels_) {
      out.pipeline.channels.push_back(entry.channel);
      out.channels.push_back(entry.size);
    }
  }

 private:
  struct Entry {
    Channel channel{{}, {}, {}, false};
    SizedPipeline::ChannelSize size;
    std::set<std::int32_t> values, gradients;
  };
  static int order(StageId stage) {
    return stage == kSource ? -1 : stage == kSink ? std::numeric_limits<int>::max() : stage.value();
  }
  std::map<std::tuple<int, int, ChannelKind>, Entry> channels_;
};

}  // namespace detail

/// The pipeline that a staging describes, on `world` ranks.
///
/// A value that several stages read is sent to each of them directly by its maker. Values whose size does not depend on
/// the samples count as replicated.
[[nodiscard]] inline SizedPipeline make_pipeline(const Workload& work, const Staging& staging, std::vector<Mesh> meshes,
                                                 int world, const BucketPolicy& buckets = {}) {
  SizedPipeline out;
  out.buckets = buckets;
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
  for (auto& group : parameter_groups(work, staging, out.pipeline.stages)) {
    const BucketCut cut = buckets_of(work, group, buckets);
    auto& sizes = out.bucket_bytes.emplace_back(cut.buckets.size());
    auto& whole = out.left_whole.emplace_back(cut.buckets.size());
    for (std::size_t i = 0; i < cut.places.size(); ++i) {  // padding between tensors takes no time
      const ParameterProfile& parameter = work.parameters[group.parameters[i].index()];
      const auto bucket = static_cast<std::size_t>(cut.places[i].bucket);
      const Bytes sent = buckets.sent(parameter.bytes, parameter.elements);
      sizes[bucket] += sent;
      if (parameter.highest_zero < 2) whole[bucket] += sent;
    }
    out.pipeline.groups.push_back({std::move(group.ranks), group.stage, static_cast<int>(sizes.size())});
  }
  return out;
}

}  // namespace autopar
