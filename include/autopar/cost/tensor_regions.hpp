#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/split.hpp>
#include <autopar/cost/concepts.hpp>
#include <autopar/cost/model_profile.hpp>

namespace autopar {

/// The largest number of a region's units on one shard.
/// @pre region.admits(shards)
[[nodiscard]] inline std::int64_t units_of_shard(const TensorRegion& region, int shards) {
  return Split::longest_in_packs(region.units, shards);
}
[[nodiscard]] inline double share_of_shard(const TensorRegion& region, int shards) {
  return static_cast<double>(units_of_shard(region, shards)) / static_cast<double>(region.units);
}
/// A shard's part of an amount that is equal for all units, rounded up.
[[nodiscard]] inline std::int64_t part_of_shard(std::int64_t whole, const TensorRegion& region, int shards) {
  const std::int64_t units = units_of_shard(region, shards);
  return whole / region.units * units + (whole % region.units * units + region.units - 1) / region.units;
}
[[nodiscard]] inline Bytes part_of_shard(Bytes whole, const TensorRegion& region, int shards) {
  return Bytes(part_of_shard(whole.value(), region, shards));
}

/// A shard's part of an atom's `whole` bytes. Every shard holds `on_each` of them; the rest is divided.
[[nodiscard]] inline Bytes memory_of_shard(Bytes whole, const Affine& on_each, double samples,
                                           const TensorRegion& region, int shards) {
  const double each = std::max(0.0, on_each.at(samples)), share = share_of_shard(region, shards);
  return Bytes(static_cast<std::int64_t>(std::ceil(each + (static_cast<double>(whole.value()) - each) * share)));
}

/// A node's cost on the largest of its region's tensor shards.
/// @param whole  the node's cost on `samples` samples
/// @param model  predicts what share of the time a shard takes, if it can
/// @pre region.admits(shards)
template <class M>
[[nodiscard]] NodeCost cost_of_shard(const NodeCost& whole, const Graph<OpProfile, ValueProfile>& graph, const M& model,
                                     NodeId node, double samples, const TensorRegion& region, int shards) {
  NodeCost cost = whole;
  ShardShare share{share_of_shard(region, shards), share_of_shard(region, shards)};
  if constexpr (CostsShards<M, Graph<OpProfile, ValueProfile>>)
    share = model.shard_share(graph, node, samples, share.forward);
  cost.forward *= share.forward;
  cost.backward *= share.backward;
  cost.backward_weight *= share.backward;
  const AtomMemory& on_each = graph[node].on_each_shard;
  cost.saved = memory_of_shard(whole.saved, on_each.saved, samples, region, shards);
  cost.workspace = memory_of_shard(whole.workspace, on_each.workspace, samples, region, shards);
  cost.deferred_weight = memory_of_shard(whole.deferred_weight, on_each.deferred_weight, samples, region, shards);
  cost.forward_workspace = memory_of_shard(whole.forward_workspace, on_each.forward_workspace, samples, region, shards);
  return cost;
}

/// Bytes of one of `calls` equal all-reduces.
/// @pre calls > 0
[[nodiscard]] inline Bytes bytes_of_call(const Affine& bytes, int calls, std::int64_t samples) {
  const double all = std::max(0.0, bytes.at(static_cast<double>(samples)));
  return Bytes(static_cast<std::int64_t>(std::ceil(all / calls)));
}

namespace detail {

inline constexpr std::int64_t kMostUnits = std::int64_t{1} << 31;

/// The violated invariant within one region; empty if there is none.
[[nodiscard]] inline std::string fault_in(const TensorRegion& region) {
  const auto is_size = [](const Affine& bytes) {
    constexpr double kLimit = 1e30;
    return bytes.per_sample >= 0 && bytes.per_sample < kLimit && bytes.fixed >= 0 && bytes.fixed < kLimit;
  };
  const auto is_exchange = [&](const Affine& bytes, int calls) {
    return is_size(bytes) && calls >= 0 && (calls > 0 || (bytes.per_sample == 0 && bytes.fixed == 0));
  };
  if (region.atoms.empty()) return "has no atom";
  if (region.units < 1 || region.units > kMostUnits)
    return "has " + std::to_string(region.units) + " units, which are not 1 to 2^31";
  if (!is_exchange(region.forward, region.forward_calls)) return "has no size of what its forward exchanges";
  if (!is_exchange(region.backward, region.backward_calls)) return "has no size of what its backward exchanges";
  return "";
}

/// Whether the region that `region` follows is one that it may follow.
[[nodiscard]] inline bool may_follow(const std::vector<TensorRegion>& regions, std::size_t region) {
  const int leader = regions[region].follows;
  return leader >= 0 && leader < static_cast<int>(region) && regions[static_cast<std::size_t>(leader)].follows < 0 &&
         regions[region].parameters.empty();
}

}  // namespace detail

/// The violated invariant of a profile's tensor regions; empty if there is none. Atoms and parameters exist and ascend.
/// Regions are disjoint. Only a region's atoms read its parameters. Sizes are non-negative and finite.
/// @cost O(atoms + parameters read)
[[nodiscard]] inline std::string fault_in_tensor_regions(const ModelProfile& profile) {
  constexpr int kNone = -1;
  std::vector<int> of_atom(profile.graph.node_count(), kNone), of_parameter(profile.parameters.size(), kNone);
  const auto take = [](const auto& ids, std::vector<int>& taken, int region, const std::string& name) -> std::string {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::string one = name + " " + std::to_string(ids[i].value());
      if (!ids[i].valid() || ids[i].index() >= taken.size()) return "has " + one + ", which the model has not";
      if (i > 0 && ids[i] <= ids[i - 1]) return "has " + one + " out of order";
      if (taken[ids[i].index()] != kNone) return "has " + one + ", which another one has";
      taken[ids[i].index()] = region;
    }
    return "";
  };
  for (std::size_t r = 0; r < profile.tensor_regions.size(); ++r) {
    const TensorRegion& region = profile.tensor_regions[r];
    std::string fault = detail::fault_in(region);
    if (fault.empty()) fault = take(region.atoms, of_atom, static_cast<int>(r), "atom");
    if (fault.empty() && region.follows >= 0 && !detail::may_follow(profile.tensor_regions, r))
      fault = "follows " + std::to_string(region.follows) + ", which is no region before it that follows none";
    if (fault.empty()) fault = take(region.parameters, of_parameter, static_cast<int>(r), "parameter");
    if (!fault.empty()) return "tensor region " + std::to_string(r) + " " + fault;
  }
  std::vector<bool> is_read(of_parameter.size(), false);
  for (const NodeId atom : profile.graph.nodes()) {
    for (const ParameterId parameter : profile.graph[atom].parameters) {
      if (parameter.index() >= is_read.size()) continue;
      is_read[parameter.index()] = true;
      const int region = of_parameter[parameter.index()];
      if (region == kNone || of_atom[atom.index()] == region) continue;
      return "tensor region " + std::to_string(region) + " has parameter " + std::to_string(parameter.value()) +
             ", which atom " + std::to_string(atom.value()) + " outside reads as well";
    }
  }
  for (std::size_t p = 0; p < is_read.size(); ++p) {
    if (of_parameter[p] == kNone || is_read[p]) continue;
    return "tensor region " + std::to_string(of_parameter[p]) + " has parameter " + std::to_string(p) +
           ", which none of its atoms reads";
  }
  return "";
}

}  // namespace autopar
