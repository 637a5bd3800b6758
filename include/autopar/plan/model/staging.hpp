#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/schedule/kind.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// One point of the search: which ranks run what, in which order. Stages are in pipeline order; none is empty.
struct Staging {
  std::vector<int> stage_of;  ///< by node of the workload
  std::vector<int> replicas;  ///< by stage
  int microbatches = 1;
  ScheduleKind schedule = kDefaultSchedule;
  /// By stage, if several share their ranks: the position, numbered by first stages. Empty = each stage has its own
  /// ranks.
  std::vector<int> position_of{};
  /// By stage: the tensor shards that run each replica; empty = one.
  std::vector<int> tensor{};

  [[nodiscard]] int stages() const { return static_cast<int>(replicas.size()); }
  [[nodiscard]] int position(int stage) const {
    return position_of.empty() ? stage : position_of[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] int tensor_of(int stage) const { return tensor.empty() ? 1 : tensor[static_cast<std::size_t>(stage)]; }
  /// By position: the replicas of its first stage.
  [[nodiscard]] std::vector<int> replicas_of_positions() const {
    std::vector<int> out;
    for (int s = 0; s < stages(); ++s) {
      if (position(s) == static_cast<int>(out.size())) out.push_back(replicas[static_cast<std::size_t>(s)]);
    }
    return out;
  }
  /// By position: the tensor shards of each replica of its first stage; empty = one.
  [[nodiscard]] std::vector<int> tensor_of_positions() const {
    std::vector<int> out;
    if (tensor.empty()) return out;
    for (int s = 0; s < stages(); ++s) {
      if (position(s) == static_cast<int>(out.size())) out.push_back(tensor_of(s));
    }
    return out;
  }
  [[nodiscard]] int ranks() const {
    const auto positions = position_of.empty() ? replicas : replicas_of_positions();
    if (tensor.empty()) return std::accumulate(positions.begin(), positions.end(), 0);
    const auto shards = tensor_of_positions();
    return std::inner_product(positions.begin(), positions.end(), shards.begin(), 0);
  }
  friend bool operator==(const Staging&, const Staging&) = default;
};

/// Nodes of each stage, ascending.
[[nodiscard]] inline std::vector<std::vector<NodeId>> nodes_by_stage(const Staging& staging) {
  std::vector<std::vector<NodeId>> nodes(staging.replicas.size());
  for (std::size_t node = 0; node < staging.stage_of.size(); ++node) {
    nodes[static_cast<std::size_t>(staging.stage_of[node])].push_back(NodeId::of(node));
  }
  return nodes;
}

/// Stages of each position, ascending; they share ranks.
[[nodiscard]] inline std::vector<std::vector<std::size_t>> stages_of_positions(const Staging& staging) {
  std::vector<std::vector<std::size_t>> stages;
  for (int s = 0; s < staging.stages(); ++s) {
    const auto position = static_cast<std::size_t>(staging.position(s));
    if (position >= stages.size()) stages.resize(position + 1);
    stages[position].push_back(static_cast<std::size_t>(s));
  }
  return stages;
}

namespace detail {

[[nodiscard]] inline std::string counted(std::size_t n, const char* one, const std::string& many) {
  return std::to_string(n) + " " + (n == 1 ? one : many);
}

/// "2 replicas", or "3+1 replicas" if they differ.
[[nodiscard]] inline std::string of_each(const std::vector<int>& counts, const char* one, const std::string& many) {
  const bool equal = std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
  if (equal) return counted(static_cast<std::size_t>(counts.front()), one, many);
  std::string text;
  for (const int count : counts) text += (text.empty() ? "" : "+") + std::to_string(count);
  return text + " " + many;
}

/// One number for each position if its stages agree everywhere; otherwise one for each stage.
[[nodiscard]] inline std::vector<int> by_position(const std::vector<int>& by_stage,
                                                  const std::vector<int>& position_of) {
  std::vector<int> out;
  for (std::size_t s = 0; s < by_stage.size(); ++s) {
    const auto position = static_cast<std::size_t>(position_of[s]);
    if (position == out.size()) out.push_back(by_stage[s]);
    if (out[position] != by_stage[s]) return by_stage;
  }
  return out;
}

}  // namespace detail

/// "2 stages x 3+1 replicas, 4 micro-batches, 1f1b". If ranks run several stages of the schedule each: "2 stages x 2
/// chunks x 1 replica, …", with positions as stages, as in `Options::stages`.
/// @param tensor  shards of each replica, by stage; empty = one: "2 stages x 3+1 replicas x 2 shards, …"
/// @param position_of  Staging::position_of
[[nodiscard]] inline std::string describe(const std::vector<int>& replicas, int microbatches, ScheduleKind schedule,
                                          const std::vector<int>& tensor = {},
                                          const std::vector<int>& position_of = {}) {
  std::vector<int> own(replicas.size());
  std::iota(own.begin(), own.end(), 0);
  const auto& positions = position_of.empty() ? own : position_of;
  std::vector<int> chunks;
  for (const int position : positions) {
    if (static_cast<std::size_t>(position) >= chunks.size()) chunks.resize(static_cast<std::size_t>(position) + 1, 0);
    ++chunks[static_cast<std::size_t>(position)];
  }
  std::string text = detail::counted(chunks.size(), "stage", "stages");
  if (chunks.size() < replicas.size()) text += " x " + detail::of_each(chunks, "chunk", "chunks");
  text += " x " + detail::of_each(detail::by_position(replicas, positions), "replica", "replicas");
  if (std::ranges::any_of(tensor, [](int shards) { return shards > 1; }))
    text += " x " + detail::of_each(detail::by_position(tensor, positions), "shard", "shards");
  text += ", " + detail::counted(static_cast<std::size_t>(microbatches), "micro-batch", "micro-batches");
  if (replicas.size() > 1) text += ", " + std::string(to_string(schedule));
  return text;
}

[[nodiscard]] inline std::string describe(const Staging& staging) {
  return describe(staging.replicas, staging.microbatches, staging.schedule, staging.tensor, staging.position_of);
}

/// The mesh of each stage.
[[nodiscard]] inline std::vector<Mesh> meshes_of(const Plan& plan) {
  std::vector<Mesh> meshes;
  for (const StagePlan& stage : plan.stages) meshes.push_back(stage.mesh);
  return meshes;
}

/// The replicas of each stage.
[[nodiscard]] inline std::vector<int> replicas_of(const Plan& plan) {
  std::vector<int> replicas;
  for (const auto& stage : plan.stages) replicas.push_back(stage.mesh.replicas());
  return replicas;
}

/// The tensor shards of each replica, by stage.
[[nodiscard]] inline std::vector<int> tensor_of(const Plan& plan) {
  std::vector<int> tensor;
  for (const auto& stage : plan.stages) tensor.push_back(stage.mesh.tensor());
  return tensor;
}

/// Staging::position_of: stages with the same ranks are chunks of one position.
[[nodiscard]] inline std::vector<int> positions_of(const Plan& plan) {
  std::vector<int> out;
  std::vector<const Mesh*> positions;
  for (const StagePlan& stage : plan.stages) {
    const auto same =
        std::ranges::find_if(positions, [&](const Mesh* mesh) { return mesh->ranks() == stage.mesh.ranks(); });
    out.push_back(static_cast<int>(same - positions.begin()));
    if (same == positions.end()) positions.push_back(&stage.mesh);
  }
  if (positions.size() == plan.stages.size()) out.clear();
  return out;
}

/// The shape of a plan with at least one stage, as `describe` gives a staging's shape.
[[nodiscard]] inline std::string describe(const Plan& plan) {
  return describe(replicas_of(plan), plan.microbatches, plan.schedule, tensor_of(plan), positions_of(plan));
}

/// Which ranks are neighbours in rank order.
enum class RankPlacement : std::uint8_t {
  kReplicasTogether,  ///< consecutive ranks are replicas of one stage: gradient sums use near links
  kStagesTogether,    ///< consecutive ranks are successive stages: activations use near links
};

/// By stage a mesh of so many replicas, from rank 0 on without gaps. The tensor shards of a replica are neighbours.
/// @param tensor  shards of each replica, by stage; empty = one
[[nodiscard]] inline std::vector<Mesh> place(const std::vector<int>& replicas, RankPlacement placement,
                                             const std::vector<int>& tensor = {}) {
  std::vector<std::pair<double, std::size_t>> computes;  // (position of the replica in its stage, stage)
  for (std::size_t s = 0; s < replicas.size(); ++s) {
    for (int q = 0; q < replicas[s]; ++q) {
      computes.emplace_back(static_cast<double>(q) / replicas[s], s);
    }
  }
  if (placement == RankPlacement::kStagesTogether) std::sort(computes.begin(), computes.end());
  std::vector<std::vector<Rank>> ranks(replicas.size());
  std::size_t next = 0;
  for (const auto& [at, stage] : computes) {
    for (int t = 0; t < (tensor.empty() ? 1 : tensor[stage]); ++t) ranks[stage].push_back(Rank::of(next++));
  }
  std::vector<Mesh> meshes;
  for (std::size_t s = 0; s < ranks.size(); ++s)
    meshes.emplace_back(std::move(ranks[s]), tensor.empty() ? 1 : tensor[s]);
  return meshes;
}

/// The mesh of each stage. Stages that share ranks have the same ranks, each in its own shape.
[[nodiscard]] inline std::vector<Mesh> place(const Staging& staging, RankPlacement placement) {
  const auto positions = place(staging.replicas_of_positions(), placement, staging.tensor_of_positions());
  std::vector<Mesh> meshes;
  for (int s = 0; s < staging.stages(); ++s)
    meshes.emplace_back(positions[static_cast<std::size_t>(staging.position(s))].ranks(), staging.tensor_of(s));
  return meshes;
}

/// The placements worth comparing. There is one if one level of links joins all ranks in use. There is also one with
/// one stage or with single replicas only, as both placements are then the same.
/// @param tensor  as of `place`
[[nodiscard]] inline std::vector<RankPlacement> rank_placements(const std::vector<int>& replicas,
                                                                const Cluster& cluster,
                                                                const std::vector<int>& tensor = {}) {
  const int units = std::accumulate(replicas.begin(), replicas.end(), 0);
  const int used = tensor.empty() ? units : std::inner_product(replicas.begin(), replicas.end(), tensor.begin(), 0);
  const bool same = replicas.size() == 1 || units == static_cast<int>(replicas.size());
  const bool one_level = cluster.levels.empty() || cluster.levels.front().span >= used;
  if (same || one_level) return {RankPlacement::kReplicasTogether};
  return {RankPlacement::kReplicasTogether, RankPlacement::kStagesTogether};
}

}  // namespace autopar
