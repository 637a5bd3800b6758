#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/request.hpp>

#include "unit/plan/random_models.hpp"

namespace autopar::test {

struct Instance {
  ModelProfile model;
  Cluster cluster;
  PlanRequest request;
};

/// What runtimes to come can do to save memory.
inline void allow_optimizations(Dice& dice, PlanRequest& request) {
  request.runtime.max_zero = dice(0, 3);
  request.runtime.recompute = dice.chance(80);
  if (dice.chance(20)) request.options.zero = dice(0, request.runtime.max_zero);
  if (request.runtime.recompute && dice.chance(40)) request.options.recompute = dice.chance(50) ? "full" : "none";
}

/// Hosts with much memory, little or none, and what may be put there.
inline void allow_offload(Dice& dice, Instance& out) {
  out.request.runtime.offload = true;
  if (dice.chance(75)) out.cluster.host = small_host(Bytes(dice.chance(50) ? 1 << 30 : dice(20, 500) * 1000));
  if (dice.chance(30)) out.request.options.offload = dice.chance(50) ? "optimizer" : "none";
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
  if (dice.chance(20)) options.schedule = dice.chance(50) ? "gpipe" : "1f1b";
  const int most = std::min<int>(out.cluster.devices, static_cast<int>(out.model.graph.node_count()));
  if (dice.chance(20)) options.stages = dice(1, most);
  if (dice.chance(15)) {
    const int stages = options.stages > 0 ? options.stages : dice(1, most);
    options.replicas.assign(static_cast<std::size_t>(stages), 1);
    if (dice.chance(30)) {  // one number for every stage, with and without a number of stages
      options.replicas = {dice(1, std::max(1, out.cluster.devices / stages))};
      return out;
    }
    for (int spare = out.cluster.devices - stages; spare > 0; --spare) {
      if (dice.chance(70)) ++options.replicas[static_cast<std::size_t>(dice(0, stages - 1))];
    }
  }
  return out;
}

/// Computing in 16 bits: some parameters are read as copies of half their size alone. Others cannot be in all shares.
inline void add_copies(Dice dice, ModelProfile& model) {
  if (dice.chance(50)) return;
  for (auto& parameter : model.parameters) {
    if (dice.chance(60))
      parameter.copy = parameter.bytes / 2;
    else if (dice.chance(40))
      parameter.highest_zero = dice.chance(50) ? 2 : 0;
  }
}

/// Small enough for brute force; every option that constrains a plan is set now and then.
inline Instance random_instance(std::uint64_t seed, int max_nodes, int max_devices = 4) {
  Dice dice(seed);
  Instance out = random_shape(dice, max_nodes, max_devices);
  add_copies(Dice(seed + 7919), out.model);
  if (dice.chance(50)) allow_optimizations(dice, out.request);
  if (dice.chance(40)) allow_offload(dice, out);
  return out;
}

/// How many stagings brute force would try: chains of downsets, replicas, micro-batches and schedules. Counted for any
/// replicas, so that fixed ones make it fewer. @pre at most 16 nodes
inline double count_stagings(const Workload& work, const Constraints& constraints) {
  const auto n = static_cast<unsigned>(work.graph.node_count());
  std::vector<unsigned> before(n, 0);
  for (const EdgeId edge : work.graph.edges())
    before[work.graph.target(edge).index()] |= 1u << work.graph.source(edge).index();
  std::vector<unsigned> downsets;
  for (unsigned set = 0; set < 1u << n; ++set) {
    bool closed = true;
    for (unsigned i = 0; i < n; ++i) closed = closed && ((set >> i & 1u) == 0 || (before[i] & ~set) == 0);
    if (closed) downsets.push_back(set);
  }
  double all = 0, choices = 1;  // choices: of positive replicas whose sum is at most the world
  std::vector<double> chains(downsets.size(), 0);
  chains.front() = 1;
  const int most = std::min(constraints.world, static_cast<int>(n));
  for (int stages = 1; stages <= most; ++stages) {
    choices = choices * (constraints.world - stages + 1) / stages;
    for (std::size_t to = downsets.size(); to-- > 0;) {
      double sum = 0;
      for (std::size_t from = 0; from < to; ++from) sum += (downsets[from] & ~downsets[to]) == 0 ? chains[from] : 0;
      chains[to] = sum;
    }
    if (constraints.stages == 0 || constraints.stages == stages) all += chains.back() * choices;
  }
  return all * static_cast<double>(constraints.microbatches.size() * constraints.schedules.size());
}

}  // namespace autopar::test
