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
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// The ranks of so many replicas, by stage or position.
/// @param tensor  shards of each replica; empty = one
[[nodiscard]] inline int ranks_of(const std::vector<int>& replicas, const std::vector<int>& tensor) {
  if (tensor.empty()) return std::accumulate(replicas.begin(), replicas.end(), 0);
  return std::inner_product(replicas.begin(), replicas.end(), tensor.begin(), 0);
}

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
  /// By position: the number of its first stage. @param by_stage  numbers; none if it is empty
  [[nodiscard]] std::vector<int> of_positions(const std::vector<int>& by_stage) const {
    if (position_of.empty()) return by_stage;
    std::vector<int> out;
    for (std::size_t s = 0; s < by_stage.size(); ++s) {
      if (position_of[s] == static_cast<int>(out.size())) out.push_back(by_stage[s]);
    }
    return out;
  }
  [[nodiscard]] std::vector<int> replicas_of_positions() const { return of_positions(replicas); }
  [[nodiscard]] std::vector<int> tensor_of_positions() const { return of_positions(tensor); }
  [[nodiscard]] int ranks() const { return ranks_of(replicas_of_positions(), tensor_of_positions()); }
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
[[nodiscard]] inline std::vector<int> by_position(const std::vector<int>& by_stage, const Staging& staging) {
  auto out = staging.of_positions(by_stage);
  for (int s = 0; s < staging.stages(); ++s) {
    if (out[static_cast<std::size_t>(staging.position(s))] != by_stage[static_cast<std::size_t>(s)]) return by_stage;
  }
  return out;
}

}  // namespace detail

/// "2 stages x 3+1 replicas x 2 shards, 4 micro-batches, 1f1b". If ranks run several stages of the schedule each: "2
/// stages x 2 chunks x 1 replica, …", with positions as stages, as in `Options::stages`.
[[nodiscard]] inline std::string describe(const Staging& staging) {
  std::vector<int> chunks;
  for (const auto& stages : stages_of_positions(staging)) chunks.push_back(static_cast<int>(stages.size()));
  std::string text = detail::counted(chunks.size(), "stage", "stages");
  if (chunks.size() < staging.replicas.size()) text += " x " + detail::of_each(chunks, "chunk", "chunks");
  text += " x " + detail::of_each(detail::by_position(staging.replicas, staging), "replica", "replicas");
  if (std::ranges::any_of(staging.tensor, [](int shards) { return shards > 1; }))
    text += " x " + detail::of_each(detail::by_position(staging.tensor, staging), "shard", "shards");
  text += ", " + detail::counted(static_cast<std::size_t>(staging.microbatches), "micro-batch", "micro-batches");
  if (staging.stages() > 1) text += ", " + std::string(to_string(staging.schedule));
  return text;
}

/// The mesh of each stage.
[[nodiscard]] inline std::vector<Mesh> meshes_of(const Plan& plan) {
  std::vector<Mesh> meshes;
  for (const StagePlan& stage : plan.stages) meshes.push_back(stage.mesh);
  return meshes;
}

/// The staging that a plan describes, without nodes. Stages with the same ranks are chunks of one position.
[[nodiscard]] inline Staging shape_of_plan(const Plan& plan) {
  Staging shape{{}, {}, plan.microbatches, plan.schedule};
  std::vector<const Mesh*> positions;
  for (const StagePlan& stage : plan.stages) {
    shape.replicas.push_back(stage.mesh.replicas());
    shape.tensor.push_back(stage.mesh.tensor());
    const auto same =
        std::ranges::find_if(positions, [&](const Mesh* mesh) { return mesh->ranks() == stage.mesh.ranks(); });
    shape.position_of.push_back(static_cast<int>(same - positions.begin()));
    if (same == positions.end()) positions.push_back(&stage.mesh);
  }
  if (positions.size() == plan.stages.size()) shape.position_of.clear();
  if (std::ranges::all_of(shape.tensor, [](int shards) { return shards == 1; })) shape.tensor.clear();
  return shape;
}

/// The shape of a plan with at least one stage, as `describe` gives a staging's shape.
[[nodiscard]] inline std::string describe(const Plan& plan) { return describe(shape_of_plan(plan)); }

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
  const bool same = replicas.size() == 1 || units == static_cast<int>(replicas.size());
  const bool one_level = cluster.levels.empty() || cluster.levels.front().span >= ranks_of(replicas, tensor);
  if (same || one_level) return {RankPlacement::kReplicasTogether};
  return {RankPlacement::kReplicasTogether, RankPlacement::kStagesTogether};
}

}  // namespace autopar
