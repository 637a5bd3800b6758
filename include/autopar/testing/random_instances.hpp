#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/testing/dice.hpp>
#include <autopar/testing/random_models.hpp>

namespace autopar::testing {

/// The input of a planner.
struct Instance {
  ModelProfile model;
  Cluster cluster;
  PlanRequest request;
};

namespace detail {

/// Chooses random memory optimizations of the runtime: ZeRO and recomputation.
inline void allow_optimizations(Dice& dice, PlanRequest& request) {
  request.runtime.max_zero = dice(0, 3);
  request.runtime.recompute = dice.chance(80);
  if (dice.chance(20)) request.options.zero = dice(0, request.runtime.max_zero);
  if (request.runtime.recompute && dice.chance(40))
    request.options.recompute = dice.chance(50) ? Recompute::kAlways : Recompute::kNever;
}

/// Adds hosts with much, little or no memory, and says what may be offloaded.
inline void allow_offload(Dice& dice, Instance& out) {
  out.request.runtime.offload = true;
  if (dice.chance(75)) out.cluster.host = small_host(Bytes(dice.chance(50) ? 1 << 30 : dice(20, 500) * 1000));
  if (dice.chance(30)) out.request.options.offload = dice.chance(50) ? Offload::kOptimizer : Offload::kNone;
  if (dice.chance(20)) out.request.options.gradient_accumulation = true;
}

inline Instance random_shape(Dice& dice, int max_nodes, int max_devices) {
  Instance out{random_model(dice, max_nodes), small_cluster(dice(1, max_devices), Bytes(dice(100, 1000) * 1000)), {}};
  out.request.batch = dice(1, 24);
  auto& options = out.request.options;
  options.memory_margin = 0.05 * dice(0, 3);
  options.optimizer_state_factor = dice(0, 4) / 2.0;
  if (dice.chance(20))
    options.microbatches = dice(1, 5);
  else
    options.max_microbatches = dice(1, 4);
  if (dice.chance(20)) options.schedule = dice.chance(50) ? kForwardsFirst : kDefaultSchedule;
  const int most = std::min<int>(out.cluster.devices, static_cast<int>(out.model.graph.node_count()));
  if (dice.chance(20)) options.stages = dice(1, most);
  if (dice.chance(15)) {
    const int stages = options.stages > 0 ? options.stages : dice(1, most);
    options.replicas.assign(static_cast<std::size_t>(stages), 1);
    if (dice.chance(30)) {  // one number for every stage, with or without a number of stages
      options.replicas = {dice(1, std::max(1, out.cluster.devices / stages))};
      return out;
    }
    for (int spare = out.cluster.devices - stages; spare > 0; --spare) {
      if (dice.chance(70)) ++options.replicas[static_cast<std::size_t>(dice(0, stages - 1))];
    }
  }
  return out;
}

/// 16-bit computation: some parameters are read only as copies of half their size, which each call may make. Others
/// cannot be sharded at all ZeRO levels.
inline void add_copies(Dice dice, ModelProfile& model) {
  if (dice.chance(50)) return;
  for (auto& parameter : model.parameters) {
    if (dice.chance(60))
      parameter.copy = parameter.bytes / 2;
    else if (dice.chance(40))
      parameter.highest_zero = dice.chance(50) ? 2 : 0;
  }
  std::vector<int> readers(model.parameters.size(), 0);
  for (const NodeId node : model.graph.nodes()) {
    for (const ParameterId parameter : model.graph[node].parameters) ++readers[parameter.index()];
  }
  const bool by_call = dice.chance(50);
  for (std::size_t p = 0; p < readers.size(); ++p) {
    auto& parameter = model.parameters[p];
    parameter.copy_by_call = by_call && parameter.copy > Bytes(0) && readers[p] == 1 && dice.chance(70);
  }
}

}  // namespace detail

/// Small enough for brute force. Every option that constrains a plan is set in some instances.
inline Instance random_instance(std::uint64_t seed, int max_nodes, int max_devices = 4) {
  Dice dice(seed);
  Instance out = detail::random_shape(dice, max_nodes, max_devices);
  detail::add_copies(Dice(seed + 7919), out.model);
  if (dice.chance(50)) detail::allow_optimizations(dice, out.request);
  if (dice.chance(40)) detail::allow_offload(dice, out);
  return out;
}

}  // namespace autopar::testing
