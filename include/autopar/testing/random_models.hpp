#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/testing/dice.hpp>

namespace autopar::testing {

/// An atom whose work scales with samples, plus launches.
inline OpProfile atom(const std::string& name, double flops, double saved, std::vector<ParameterId> parameters = {}) {
  OpProfile op;
  op.name = name;
  op.path = "layer." + name;
  WorkItem item;
  item.op_class = OpClass::kMatmul;
  item.forward = {{flops, 0}, {flops / 50, flops / 100}, {0, 1}};
  item.backward = {{2 * flops, 0}, {flops / 25, flops / 50}, {0, 2}};
  op.work = {item};
  op.saved = {saved, 16};
  op.workspace = {saved / 4, 64};
  op.forward_workspace = {saved / 5, 64};
  if (!parameters.empty()) op.deferred_weight = {saved / 2, 8};
  op.parameters = std::move(parameters);
  return op;
}

/// A chain of `layers` equal atoms, each with its own parameter.
inline ModelProfile chain(int layers, double flops, std::int64_t parameter_bytes, double value_bytes) {
  ModelProfile model;
  NodeId before = NodeId::none();
  for (int i = 0; i < layers; ++i) {
    model.parameters.push_back({"layers." + std::to_string(i) + ".weight", Bytes(parameter_bytes), true});
    OpProfile op = atom(std::to_string(i), flops, value_bytes, {ParameterId(i)});
    op.ops = {i};
    const NodeId node = model.graph.add_node(std::move(op));
    if (before.valid()) model.graph.add_edge(before, node, {i, {value_bytes, 0}, true});
    before = node;
  }
  model.inputs = {{0, {value_bytes, 0}, false, {NodeId(0)}}};
  model.outputs = {{layers, {0, 8}, before}};
  model.hash = 42;
  return model;
}

/// A random model with branches, skips, values with several readers, tied and frozen parameters, replicated values, and
/// parts without gradient.
inline ModelProfile random_model(Dice& dice, int max_nodes) {
  ModelProfile model;
  const int n = dice(1, max_nodes);
  for (int p = 0; p < n + 1; ++p) {
    model.parameters.push_back({"p" + std::to_string(p), Bytes(dice(0, 40) * 1000), !dice.chance(15)});
  }
  for (int i = 0; i < n; ++i) {
    std::vector<ParameterId> read;
    if (dice.chance(70)) read.push_back(ParameterId(i));
    if (dice.chance(20)) read.push_back(ParameterId(dice(0, n)));  // often tied
    OpProfile op = atom(std::to_string(i), dice(0, 30) * 1e4, dice(0, 20) * 100, read);
    if (dice.chance(30)) op.work.front().op_class = OpClass::kMemory;
    op.whole_batch = dice.chance(4);
    if (dice.chance(2)) op.totals = Bytes(dice(1, 40) * 1000);
    op.ops = {i};
    model.graph.add_node(std::move(op));
  }
  std::map<int, Affine> size_of;  // of each node's value
  for (int i = 1; i < n; ++i) {
    for (int edges = dice(0, 9) == 0 ? 0 : dice(1, 2); edges > 0; --edges) {
      const int from = dice.chance(60) ? i - 1 : dice(0, i - 1);
      const Affine drawn = dice.chance(15) ? Affine{0, 400.0} : Affine{dice(1, 30) * 40.0, 0};
      const Affine bytes = size_of.try_emplace(from, drawn).first->second;
      model.graph.add_edge(NodeId(from), NodeId(i),
                           {100 + from, bytes, !dice.chance(10), from % 2 == 0, from % 4 == 0, from % 3 == 0});
    }
  }
  model.inputs = {{0, {400, 0}, dice.chance(30), {NodeId(0), NodeId(dice(0, n - 1))}}};
  model.loss_mode = !dice.chance(25);
  model.outputs = {{999, model.loss_mode ? Affine{0, 8} : Affine{200, 0}, NodeId(n - 1)}};
  model.held_beside = {3, 40};
  model.hash = 7;
  return model;
}

/// Adds regions: adjacent atoms that tensor shards can compute together, with parameters that only they read. Regions
/// that follow them can be divided by tokens.
inline void add_tensor_regions(ModelProfile& model, Dice& dice) {
  const int n = static_cast<int>(model.graph.node_count());
  for (int first = dice(0, 1); first < n;) {
    const int last = std::min(n - 1, first + dice(0, 2));
    TensorRegion region;
    for (int i = first; i <= last; ++i) region.atoms.push_back(NodeId(i));
    for (int p = 0; p < static_cast<int>(model.parameters.size()); ++p) {
      bool inside = false, outside = false;
      for (const NodeId node : model.graph.nodes()) {
        const auto& read = model.graph[node].parameters;
        if (std::find(read.begin(), read.end(), ParameterId(p)) == read.end()) continue;
        (node.value() >= first && node.value() <= last ? inside : outside) = true;
      }
      if (inside && !outside && dice.chance(80)) region.parameters.push_back(ParameterId(p));
    }
    region.units = dice(1, 12);
    region.even = dice.chance(60);
    region.forward_calls = dice(0, 2);
    region.backward_calls = dice(0, 2);
    if (region.forward_calls > 0) region.forward = {dice(0, 30) * 40.0, dice(0, 2) * 100.0};
    if (region.backward_calls > 0) region.backward = {dice(0, 30) * 40.0, dice(0, 2) * 100.0};
    for (const NodeId node : region.atoms) {
      OpProfile& op = model.graph[node];
      if (dice.chance(50))
        op.on_each_shard = {op.saved * 0.25, op.workspace * 1.5, op.deferred_weight * 0.5, op.forward_workspace};
    }
    model.tensor_regions.push_back(std::move(region));
    first = last + 1 + dice(0, 2);
  }
  const auto leaders = model.tensor_regions.size();
  for (std::size_t r = 0; r < leaders; ++r) {
    const int from = model.tensor_regions[r].atoms.back().value() + 1;
    const int to = r + 1 < leaders ? model.tensor_regions[r + 1].atoms.front().value() : n;
    if (from >= to || dice.chance(30)) continue;
    TensorRegion behind;
    for (int i = from; i < to; ++i) behind.atoms.push_back(NodeId(i));
    behind.units = dice(1, 12);
    behind.even = false;
    behind.follows = static_cast<int>(r);
    behind.forward_calls = dice(0, 1);
    behind.backward_calls = dice(0, 2);
    if (behind.forward_calls > 0) behind.forward = {dice(0, 2) * 40.0, 0};
    if (behind.backward_calls > 0) behind.backward = {0, dice(0, 2) * 100.0};
    for (const NodeId node : behind.atoms) {
      OpProfile& op = model.graph[node];
      if (dice.chance(50))
        op.on_each_shard = {op.saved * 0.25, op.workspace * 1.5, op.deferred_weight * 0.5, op.forward_workspace};
    }
    model.tensor_regions.push_back(std::move(behind));
  }
}

/// A host with this much memory for a device. Its memory and link are slower than the device.
inline Host small_host(Bytes memory) { return {memory, BytesPerSecond(4e8), {Seconds(3e-6), BytesPerSecond(6e8)}}; }

inline Cluster small_cluster(int devices, Bytes memory = Bytes(1 << 20)) {
  Cluster cluster;
  cluster.name = "small";
  cluster.devices = devices;
  cluster.device.name = "toy";
  cluster.device.memory = memory;
  cluster.device.f32 = FlopsPerSecond(1e10);
  cluster.device.memory_bandwidth = BytesPerSecond(1e9);
  cluster.device.launch = Seconds(2e-6);
  cluster.levels = {{"node", 2, {Seconds(1e-6), BytesPerSecond(4e9)}},
                    {"all", devices, {Seconds(8e-6), BytesPerSecond(1e9)}}};
  if (devices <= 2) cluster.levels = {{"node", devices, {Seconds(1e-6), BytesPerSecond(4e9)}}};
  return cluster;
}

}  // namespace autopar::testing
