#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <autopar/plan/model/node_mask.hpp>
#include <autopar/plan/step/objective.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// What all stages of a staging have in common.
struct MemoryVariant {
  int microbatches = 1;
  ScheduleKind schedule = kDefaultSchedule;
  int zero = 0;
  Offload offload = Offload::kNone;
};

/// A lower bound on what a stage holds, whatever the stages around it. It is the planner's own prediction, with all
/// other nodes in one other stage on all ranks. A value that several stages read counts once; a tied parameter's state
/// is shared by the most ranks.
class StageFloor {
 public:
  struct Held {
    Bytes device{}, host{};
  };

  explicit StageFloor(const StepObjective& objective) : objective_(objective) {}

  /// @param in_flight  micro-batches that the stage holds
  [[nodiscard]] const Held& operator()(NodeMask nodes, bool only, int in_flight, int replicas,
                                       const MemoryVariant& variant) {
    const auto [entry, added] = held_.try_emplace(key_of(nodes, in_flight, replicas, variant));
    if (added) entry->second = least_held(nodes, only, in_flight, replicas, variant);
    return entry->second;
  }
  /// The number of cached results.
  [[nodiscard]] std::size_t size() const { return held_.size(); }

 private:
  using Key = std::tuple<NodeMask, int, int, int, int, int, int>;
  [[nodiscard]] static Key key_of(NodeMask nodes, int in_flight, int replicas, const MemoryVariant& variant) {
    return {nodes,
            in_flight,
            replicas,
            variant.microbatches,
            static_cast<int>(variant.schedule),
            variant.zero,
            static_cast<int>(variant.offload)};
  }
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return std::apply(
          [](auto... parts) {
            std::uint64_t hash = 0;
            ((hash = (hash ^ static_cast<std::uint64_t>(parts)) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29), ...);
            return static_cast<std::size_t>(hash);
          },
          key);
    }
  };

  [[nodiscard]] Held least_held(NodeMask nodes, bool only, int in_flight, int replicas, const MemoryVariant& variant) {
    const Workload& work = objective_.work();
    const Constraints& constraints = objective_.constraints();
    Staging staging{std::vector<int>(work.graph.node_count(), 1), {replicas}, variant.microbatches, variant.schedule};
    if (!only) staging.replicas.push_back(constraints.world);
    for_each_node(nodes, [&](NodeId node) { staging.stage_of[node.index()] = 0; });
    const auto [shape, added] = shapes_.try_emplace(nodes);
    if (added) {
      std::vector<Mesh> meshes;  // only which meshes are equal matters
      for (int s = 0; s < staging.stages(); ++s) meshes.push_back({Rank(s)});
      shape->second = {make_pipeline(work, staging, std::move(meshes), 2, constraints.buckets),
                       segments_in_stages(work, staging)};
      if (!only) shape->second.segments.back().clear();
    }
    const auto& [sized, segments] = shape->second;
    const auto [fixed, is_new] = fixed_.try_emplace(key_of(nodes, 0, replicas, variant));
    if (is_new) fixed->second = fixed_memory(work, constraints, staging, variant.zero, variant.offload);
    const SizedStages stages = sized_stages(work, staging, sized, objective_.slices());
    std::vector<InFlight> held(staging.replicas.size());
    held.front().whole = stages.samples.front().most(in_flight);
    MemoryOptimizations optimizations{variant.zero, {}, variant.offload};
    if (constraints.recompute != Recompute::kNever) {
      const RecomputeChoice choice(stages, segments, held, fixed->second);
      optimizations.recomputed =
          choice.chosen(constraints.recompute == Recompute::kAlways ? std::nullopt : std::optional(Bytes(0)));
    }
    const StageMemory memory = predict_memory(stages, held, optimizations, fixed->second).front();
    return {memory.total(), memory.host};
  }

  struct Shape {
    SizedPipeline sized;
    StageSegments segments;
  };
  const StepObjective& objective_;
  std::unordered_map<Key, Held, Hash> held_;
  std::unordered_map<Key, std::vector<StageMemory>, Hash> fixed_;
  std::unordered_map<NodeMask, Shape> shapes_;
};

}  // namespace autopar::detail
