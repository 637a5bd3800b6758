#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include <autopar/cost/tensor_regions.hpp>
#include <autopar/plan/model/parameter_groups.hpp>

namespace autopar {

/// By region: how many shards compute it together. That is the tensor degree of the stage that has all of it, if the
/// region admits that number; otherwise 1. A region that follows another is computed together only if `sequence` is set
/// and its leader, in the same stage, is.
[[nodiscard]] inline std::vector<int> region_shards_of(const std::vector<TensorRegion>& regions, const Staging& staging,
                                                       bool sequence) {
  std::vector<int> shards(regions.size(), 1);
  for (std::size_t r = 0; r < shards.size(); ++r) {
    const TensorRegion& region = regions[r];
    const int stage = staging.stage_of[region.atoms.front().index()];
    const int own = staging.tensor_of(stage);
    const bool whole =
        std::ranges::all_of(region.atoms, [&](NodeId node) { return staging.stage_of[node.index()] == stage; });
    if (!whole || !region.admits(own)) continue;
    if (region.follows >= 0) {
      const auto leader = static_cast<std::size_t>(region.follows);
      const bool is_led = staging.stage_of[regions[leader].atoms.front().index()] == stage && shards[leader] > 1;
      if (!sequence || !is_led) continue;
    }
    shards[r] = own;
  }
  return shards;
}

/// The same for a plan of a model, for the runtime.
/// @pre the plan divides this model
[[nodiscard]] inline std::vector<int> region_shards_of(const ModelProfile& model, const Plan& plan) {
  Staging staging = shape_of_plan(plan);
  staging.stage_of.assign(model.graph.node_count(), 0);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const NodeId atom : plan.stages[s].atoms) staging.stage_of[atom.index()] = static_cast<int>(s);
  }
  return region_shards_of(model.tensor_regions, staging, plan.sequence_parallel);
}

/// Whether a stage with tensor shards reads a trained parameter that another stage reads as well. Its gradient would
/// have to be summed with ranks that are no replicas of the shard.
/// @param tensor  shards of each replica, if the staging states none
[[nodiscard]] inline bool ties_tensor_shards(const Workload& work, const Staging& staging, int tensor = 1) {
  const auto is_sharded = [&](int stage) { return (staging.tensor.empty() ? tensor : staging.tensor_of(stage)) > 1; };
  if (staging.tensor.empty() && tensor == 1) return false;
  return std::ranges::any_of(detail::stages_of_parameters(work, staging).tied,
                             [&](const auto& tied) { return std::ranges::any_of(tied.second, is_sharded); });
}

namespace detail {

/// A shard's slice of a parameter.
[[nodiscard]] inline ParameterProfile in_slices(ParameterProfile parameter, const TensorRegion& region, int shards) {
  parameter.bytes = part_of_shard(parameter.bytes, region, shards);
  parameter.copy = part_of_shard(parameter.copy, region, shards);
  parameter.elements = part_of_shard(parameter.elements, region, shards);
  return parameter;
}

/// The workload in which each region is computed by so many shards, with these costs of nodes.
[[nodiscard]] inline Workload with_shards(const Workload& work, std::vector<int> region_shards,
                                          std::function<std::vector<NodeCost>(std::int64_t)> costs) {
  Workload out = work;
  for (std::size_t r = 0; r < out.regions.size(); ++r) {
    if (region_shards[r] == 1) continue;
    for (const ParameterId id : out.regions[r].parameters)
      out.parameters[id.index()] = in_slices(out.parameters[id.index()], out.regions[r], region_shards[r]);
    for (const NodeId node : out.regions[r].atoms)
      out.graph[node].largest_trained = out.largest_trained_in_shards(node, region_shards);
  }
  out.region_shards = std::move(region_shards);
  out.class_of.clear();
  out.class_costs = nullptr;
  out.node_costs = tabulated(std::move(costs));
  out.node_cost = [costs = out.node_costs](NodeId node, std::int64_t samples) { return costs(samples)[node.index()]; };
  return out;
}

/// Costs of all nodes if each region is computed by so many shards.
[[nodiscard]] inline std::vector<NodeCost> costs_in_shards(const Workload& work, std::int64_t samples,
                                                           const std::vector<int>& region_shards) {
  std::vector<NodeCost> costs = work.node_costs(samples);
  std::set<NodeId> changed;
  for (std::size_t r = 0; r < region_shards.size(); ++r) {
    if (region_shards[r] > 1) changed.insert(work.regions[r].atoms.begin(), work.regions[r].atoms.end());
  }
  for (const NodeId node : changed) costs[node.index()] = work.node_cost_in_shards(node, samples, region_shards);
  return costs;
}

/// Adds to the costs of a region's nodes the least that its exchanges take. They are spread over the nodes in
/// proportion to what slices save there, and never exceed that.
inline void add_least_exchanges(std::vector<NodeCost>& least, const Workload& work, std::int64_t samples, std::size_t r,
                                int shards) {
  const TensorRegion& region = work.regions[r];
  const auto& whole = work.node_costs(samples);
  std::vector<int> alone(work.regions.size(), 1);
  alone[r] = shards;
  std::vector<NodeCost> sliced;  // by node of the region
  for (const NodeId node : region.atoms) sliced.push_back(work.node_cost_in_shards(node, samples, alone));
  const auto add = [&](Seconds NodeCost::*seconds, const Affine& bytes, int calls) {
    Seconds saved{};
    for (std::size_t i = 0; i < sliced.size(); ++i)
      saved += whole[region.atoms[i].index()].*seconds - sliced[i].*seconds;
    if (calls == 0 || saved <= Seconds{}) return;
    const Seconds exchanged = work.least_all_reduce(bytes_of_call(bytes, calls, samples), shards);
    const double part = std::min(1.0, exchanged * static_cast<double>(calls) / saved);
    for (std::size_t i = 0; i < sliced.size(); ++i) {
      const std::size_t node = region.atoms[i].index();
      least[node].*seconds += (whole[node].*seconds - sliced[i].*seconds) * part;
    }
  };
  add(&NodeCost::forward, region.forward, region.forward_calls);
  add(&NodeCost::backward, region.backward, region.backward_calls);
  for (const NodeId node : region.atoms) {
    for (Bytes NodeCost::*memory : kMemoryOfCost)  // what is exchanged may take more than slices save
      least[node.index()].*memory = std::min(least[node.index()].*memory, whole[node.index()].*memory);
  }
}

}  // namespace detail

/// The workload as the stages of a staging compute it: the work of one rank. Refers to `work`.
/// @param work      nothing in it is sharded
/// @param sequence  whether regions that follow others are cut by tokens
/// @cost O(nodes + edges), and O(nodes) for each slice whose costs are asked for
[[nodiscard]] inline Workload in_shards(const Workload& work, const Staging& staging, bool sequence) {
  auto region_shards = region_shards_of(work.regions, staging, sequence);
  auto costs = [&work, region_shards](std::int64_t samples) {
    return detail::costs_in_shards(work, samples, region_shards);
  };
  return detail::with_shards(work, std::move(region_shards), std::move(costs));
}

/// A lower bound on the costs of each node in stages with `tensor` shards a replica, wherever stages are cut.
/// @param work  nothing in it is sharded
[[nodiscard]] inline Workload least_in_shards(const Workload& work, int tensor) {
  std::vector<int> region_shards;
  for (const TensorRegion& region : work.regions) {
    const bool is_led = region.follows < 0 || region_shards[static_cast<std::size_t>(region.follows)] > 1;
    region_shards.push_back(is_led && region.admits(tensor) ? tensor : 1);
  }
  auto costs = [&work, region_shards](std::int64_t samples) {
    std::vector<NodeCost> least = detail::costs_in_shards(work, samples, region_shards);
    for (std::size_t r = 0; r < region_shards.size(); ++r) {
      if (region_shards[r] > 1) detail::add_least_exchanges(least, work, samples, r, region_shards[r]);
    }
    return least;
  };
  Workload out = detail::with_shards(work, region_shards, std::move(costs));
  out.region_shards.clear();  // not known before there are stages
  return out;
}

}  // namespace autopar
