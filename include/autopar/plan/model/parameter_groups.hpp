#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <autopar/plan/buckets.hpp>
#include <autopar/plan/model/staging.hpp>

namespace autopar {

/// Trained parameters whose gradients are summed by the same ranks: of one stage, or tied across several.
struct ParameterGroup {
  std::vector<Rank> ranks;              ///< ascending, at least two
  StageId stage;                        ///< invalid: tied
  std::vector<ParameterId> parameters;  ///< in the order in which their gradients are complete
};

namespace detail {

/// The stages that read a trainable parameter.
struct ReadingStages {
  static constexpr int kNone = -1, kSeveral = -2;
  std::vector<int> only;                      ///< [parameter] the only stage that reads it; else kNone or kSeveral
  std::map<std::size_t, std::set<int>> tied;  ///< [parameter] the stages, if several read it

  /// @param visit  visit(int stage), for each stage that reads a parameter
  template <class Visit>
  void for_each(std::size_t parameter, const Visit& visit) const {
    if (only[parameter] >= 0) visit(only[parameter]);
    if (only[parameter] == kSeveral) std::ranges::for_each(tied.at(parameter), visit);
  }
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

/// A parameter as an item of a bucket. Kinds distinguish ZeRO levels, element types, and parameters that are read as a
/// copy. If the number of elements is unknown, the parameter counts as bytes that need no alignment.
/// @param level  ZeRO level at which the parameter is held
[[nodiscard]] inline BucketItem bucket_item(const ParameterProfile& parameter, int level) {
  constexpr std::int64_t kSizes = 64;  // of elements, more than there are
  const std::int64_t bytes = parameter.bytes.value(), elements = parameter.elements;
  const bool known = elements > 0 && bytes > 0 && bytes % elements == 0 && bytes / elements < kSizes;
  const std::int64_t element = known ? bytes / elements : 1;
  const std::int64_t copy = level == 0 ? 0 : known ? parameter.copy.value() / elements % kSizes : 0;
  const auto kind = static_cast<int>((level * kSizes + element) * kSizes + copy);
  return known ? BucketItem::of(elements, element, kind) : BucketItem{bytes, element, kind};
}

}  // namespace detail

/// The groups of stages, one for each tensor shard with several replicas; then the groups of tied parameters.
/// @param meshes  by stage
[[nodiscard]] inline std::vector<ParameterGroup> parameter_groups(const Workload& work, const Staging& staging,
                                                                  const std::vector<Mesh>& meshes) {
  std::vector<ParameterGroup> groups;
  const auto add = [&](std::vector<Rank> members, StageId stage, std::vector<ParameterId> parameters) {
    detail::make_set(members);  // tied stages may share ranks
    if (members.size() > 1 && !parameters.empty()) groups.push_back({std::move(members), stage, std::move(parameters)});
  };
  const detail::ReadingStages stages = detail::stages_of_parameters(work, staging);
  std::vector<std::vector<ParameterId>> own(staging.replicas.size());
  std::map<std::vector<int>, std::vector<ParameterId>> tied;  // by the stages that share them
  // Profiles list parameters by last reader, and the parameter that is read last gets its gradient first.
  for (std::size_t p = stages.only.size(); p-- > 0;) {
    if (stages.only[p] >= 0) own[static_cast<std::size_t>(stages.only[p])].push_back(ParameterId::of(p));
    if (stages.only[p] != detail::ReadingStages::kSeveral) continue;
    const auto& readers = stages.tied.at(p);
    tied[{readers.begin(), readers.end()}].push_back(ParameterId::of(p));
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    // Of stages that share ranks, the backwards of the later one end first.
    const std::size_t s = staging.position_of.empty() ? i : own.size() - 1 - i;
    for (int t = 0; t < meshes[s].tensor(); ++t) add(meshes[s].replica_group(t), StageId::of(s), own[s]);
  }
  for (auto& [holders, parameters] : tied) {
    std::vector<Rank> members;
    for (const int s : holders) {
      const auto& more = meshes[static_cast<std::size_t>(s)].ranks();
      members.insert(members.end(), more.begin(), more.end());
    }
    add(std::move(members), StageId::none(), std::move(parameters));
  }
  return groups;
}

/// The buckets of a group's parameters: units of the parameters that ZeRO shards, and buckets of the others.
struct ShardedBuckets {
  BucketCut units;
  BucketCut whole;
};
/// @param zero  the plan's level; at 0 nothing is in units, and tied parameters are sharded at level 1
[[nodiscard]] inline ShardedBuckets sharded_buckets_of(const Workload& work, const ParameterGroup& group,
                                                       const BucketPolicy& policy, int zero) {
  std::vector<BucketItem> in_units, others;
  for (const ParameterId id : group.parameters) {
    const ParameterProfile& parameter = work.parameters[id.index()];
    const int level = std::min({zero, parameter.highest_zero, group.stage.valid() ? 3 : 1});
    (level > 0 ? in_units : others).push_back(detail::bucket_item(parameter, level));
  }
  const Bytes largest = in_units.empty() ? Bytes(0) : largest_trained(work);
  return {cut_into_buckets(in_units, policy.unit_size(zero, largest)), cut_into_buckets(others, policy.size)};
}

/// The buckets in which a group's gradients are summed if each of its ranks holds whole gradients.
[[nodiscard]] inline BucketCut buckets_of(const Workload& work, const ParameterGroup& group,
                                          const BucketPolicy& policy) {
  return sharded_buckets_of(work, group, policy, 0).whole;
}

}  // namespace autopar
