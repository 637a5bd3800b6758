#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>
#include <autopar/cost/concepts.hpp>
#include <autopar/cost/contention.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/tensor_regions.hpp>
#include <autopar/graph/algorithms/quotient.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/graph.hpp>
#include <autopar/graph/iteration.hpp>
#include <autopar/plan/search_budget.hpp>

namespace autopar {

/// The most trainable bytes that one member of a node reads.
struct LargestTrained {
  Bytes of_all{};      ///< of any member
  Bytes of_several{};  ///< of those that read several trainable parameters

  /// Of a member that reads so many bytes of so many parameters.
  [[nodiscard]] static LargestTrained of(Bytes read, int parameters) {
    return {read, parameters > 1 ? read : Bytes(0)};
  }
  void add(const LargestTrained& other) {
    of_all = std::max(of_all, other.of_all);
    of_several = std::max(of_several, other.of_several);
  }
};

/// One unit of work for a planner: a node of the user's graph, or a block of several.
struct WorkNode {
  std::string name;                     ///< for messages
  std::string path;                     ///< for messages, may be empty
  std::vector<ParameterId> parameters;  ///< read by it, ascending, each once
  Bytes resident{};                     ///< held all the time, besides parameters
  bool whole_batch = false;             ///< exact only with one micro-batch and one replica
  Bytes totals{};                       ///< bytes of sums over the whole batch: one micro-batch only, see OpProfile
  bool batch_statistic = false;         ///< normalises over the samples of one execution
  bool economy_of_scale = false;        ///< cost per sample is no less in a small slice than in a large one
  LargestTrained largest_trained{};
  std::vector<ParameterId> read_by_several;  ///< parameters that several members read, ascending
  std::vector<NodeId> members;               ///< nodes of the original graph, ascending
};

/// Seconds of what nodes do not do themselves. The same for a graph and for its blocks.
struct LinkCosts {
  std::function<Seconds(Bytes, Rank, Rank)> transfer;
  std::function<Seconds(Bytes, std::span<const Rank>)> all_reduce;
  std::function<Seconds(Bytes, double)> update;
  /// The update of offloaded parameters, at least `update`; empty if the cost model does not predict it.
  std::function<Seconds(Bytes, double)> offloaded_update;
  std::function<Seconds(Bytes, int)> least_all_reduce;          ///< a lower bound for any placement of the replicas
  std::function<Seconds(Bytes)> least_transfer;                 ///< a lower bound for any ranks
  std::function<Contention(std::span<const Rank>)> contention;  ///< of exchanges among ranks with their computation
  double message_delay = 0;                                     ///< see `DelaysByMessages`
  std::function<Contention(int)> least_contention;              ///< a lower bound for any placement of the replicas
  std::function<Seconds(Bytes)> passes;                         ///< over the device's memory
};

/// Costs of many nodes for a slice of `samples` > 0; the reference stays valid as long as the function.
using CostTable = std::function<const std::vector<NodeCost>&(std::int64_t samples)>;

/// What a planner knows of a task graph. Values only: the types of graph and cost model are erased. Coarsening gives
/// another workload, with the same costs for the same sets of original nodes.
struct Workload : LinkCosts {
  Graph<WorkNode, ValueProfile> graph;
  std::vector<ParameterProfile> parameters;  ///< by ParameterId
  std::vector<InputProfile> inputs;          ///< readers are nodes of `graph`
  std::vector<OutputProfile> outputs;        ///< writers are nodes of `graph`
  Affine held_beside;                        ///< see ModelProfile
  bool loss_mode = true;                     ///< forwards and backwards may be interleaved
  bool chunked_heads = false;                ///< see ModelProfile
  bool layers_by_inputs = false;             ///< likewise
  std::uint64_t hash = 0;
  /// By node: the segment with which it may be recomputed, as far as the segment is in one stage; -1 = never. Empty =
  /// each node is its own segment.
  std::vector<int> segment_of;

  /// By node, if the cost model reads values only: equal nodes have equal classes. Otherwise empty.
  std::vector<int> class_of;
  CostTable class_costs;  ///< of the classes, if there are any

  std::vector<TensorRegion> regions;         ///< `atoms` are nodes of `graph`, of which a part may lie outside
  std::vector<std::vector<int>> regions_of;  ///< by node: the regions that have a part of it; empty = no regions
  /// By region: how many shards compute it together in this workload; empty = all are computed whole.
  std::vector<int> region_shards;
  /// Cost of a node if its regions are computed by so many shards each, whatever `region_shards` says.
  std::function<NodeCost(NodeId, std::int64_t samples, const std::vector<int>& region_shards)> node_cost_in_shards;
  /// `WorkNode::largest_trained`, likewise.
  std::function<LargestTrained(NodeId, const std::vector<int>& region_shards)> largest_trained_in_shards;

  /// Costs of one node for a slice of `samples` > 0, computed anew.
  std::function<NodeCost(NodeId, std::int64_t samples)> node_cost;
  CostTable node_costs;  ///< of all nodes of `graph`
};

/// The most trainable bytes that one node reads.
[[nodiscard]] inline Bytes largest_trained(const Workload& work) {
  Bytes largest{};
  for (const NodeId node : work.graph.nodes()) largest = std::max(largest, work.graph[node].largest_trained.of_all);
  return largest;
}

/// Whether a path names a module or something within it.
[[nodiscard]] inline bool is_within(const std::string& path, const std::string& module) {
  return path == module || (path.starts_with(module) && path.size() > module.size() && path[module.size()] == '.');
}

namespace detail {

/// The bytes among the costs of a node.
inline constexpr Bytes NodeCost::*kMemoryOfCost[] = {&NodeCost::saved, &NodeCost::workspace, &NodeCost::deferred_weight,
                                                     &NodeCost::forward_workspace};

/// @throws InvalidArgument if a cost is negative, infinite or not a number
[[nodiscard]] inline const NodeCost& checked(const NodeCost& cost, NodeId node, std::int64_t samples) {
  const auto legal = [](Seconds s) { return s.value() >= 0 && s.value() < 1e18; };  // false for NaN
  const bool parts = cost.backward_weight >= Seconds{} && cost.backward_weight <= cost.backward;
  const auto is_negative = [&](Bytes NodeCost::*memory) { return cost.*memory < Bytes(0); };
  if (!legal(cost.forward) || !legal(cost.backward) || !parts || std::ranges::any_of(kMemoryOfCost, is_negative)) {
    throw InvalidArgument("the cost of node " + std::to_string(node.value()) + " on " + std::to_string(samples) +
                          " samples is negative, infinite or not a number; correct the cost model");
  }
  return cost;
}

/// Each value once, ascending.
template <class T>
void make_set(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

/// Tabulates costs, which depend on the slice only: each slice is evaluated once, for all nodes together.
[[nodiscard]] inline CostTable tabulated(std::function<std::vector<NodeCost>(std::int64_t)> costs) {
  auto rows = std::make_shared<std::map<std::int64_t, std::vector<NodeCost>>>();
  return [rows, costs = std::move(costs)](std::int64_t samples) -> const std::vector<NodeCost>& {
    auto& row = (*rows)[samples];
    if (row.empty()) row = costs(samples);
    return row;
  };
}
[[nodiscard]] inline CostTable tabulated(std::size_t nodes, std::function<NodeCost(NodeId, std::int64_t)> cost) {
  return tabulated([nodes, cost = std::move(cost)](std::int64_t samples) {
    std::vector<NodeCost> row;
    row.reserve(nodes);
    for (const NodeId node : id_range<NodeId>(nodes)) row.push_back(cost(node, samples));
    return row;
  });
}

template <class M>
[[nodiscard]] LinkCosts link_costs(const M& model) {
  LinkCosts costs;
  costs.transfer = [&model](Bytes bytes, Rank from, Rank to) { return model.transfer(bytes, from, to); };
  costs.all_reduce = [&model](Bytes bytes, std::span<const Rank> ranks) { return model.all_reduce(bytes, ranks); };
  costs.update = [&model](Bytes bytes, double factor) { return model.update(bytes, factor); };
  if constexpr (UpdatesOnHost<M>) {
    costs.offloaded_update = [&model](Bytes bytes, double factor) {
      return std::max(model.update(bytes, factor), model.offloaded_update(bytes, factor));
    };
  }
  costs.least_all_reduce = [&model](Bytes bytes, int replicas) -> Seconds {
    if constexpr (BoundsAllReduce<M>) return model.least_all_reduce(bytes, replicas);
    return {};
  };
  costs.least_transfer = [&model](Bytes bytes) -> Seconds {
    if constexpr (BoundsTransfer<M>) return model.least_transfer(bytes);
    return {};
  };
  if constexpr (DelaysByMessages<M>) costs.message_delay = model.message_delay();
  costs.contention = [&model](std::span<const Rank> ranks) { return contention_of(model, ranks); };
  costs.least_contention = [&model](int replicas) -> Contention {
    if constexpr (BoundsContention<M>) return model.least_contention(replicas);
    return kNoContention;
  };
  costs.passes = [&model](Bytes bytes) -> Seconds {
    if constexpr (CostsPasses<M>) return model.passes(bytes);
    return {};
  };
  return costs;
}

/// [node] class of equal operators, in order of first appearance. An equal structure is only a hint.
[[nodiscard]] inline std::vector<int> classes_of(const Graph<OpProfile, ValueProfile>& graph,
                                                 std::vector<NodeId>& representatives) {
  std::unordered_multimap<std::uint64_t, int> known;
  std::vector<int> class_of;
  class_of.reserve(graph.node_count());
  for (const NodeId node : graph.nodes()) {
    const OpProfile& op = graph[node];
    const auto equal = [&](const auto& entry) {
      const OpProfile& other = graph[representatives[static_cast<std::size_t>(entry.second)]];
      return op.work == other.work && op.saved == other.saved && op.workspace == other.workspace &&
             op.deferred_weight == other.deferred_weight && op.forward_workspace == other.forward_workspace &&
             op.parameters.empty() == other.parameters.empty();
    };
    const auto [begin, end] = known.equal_range(op.structure);
    const auto found = std::find_if(begin, end, equal);
    class_of.push_back(found != end ? found->second : static_cast<int>(representatives.size()));
    if (found != end) continue;
    // Structures that distinguish nothing must not make this quadratic.
    if (std::distance(begin, end) < 8) known.emplace(op.structure, class_of.back());
    representatives.push_back(node);
  }
  return class_of;
}

/// Costs of many nodes by their classes, if that saves work.
inline void set_classes(Workload& work, const Graph<OpProfile, ValueProfile>& graph) {
  if (graph.node_count() < SearchBudget{}.many_nodes) return;
  auto representatives = std::make_shared<std::vector<NodeId>>();
  work.class_of = classes_of(graph, *representatives);
  if (2 * representatives->size() > graph.node_count()) {
    work.class_of.clear();
    return;
  }
  work.class_costs = tabulated(representatives->size(),
                               [node_cost = work.node_cost, representatives](NodeId one, std::int64_t samples) {
                                 return node_cost((*representatives)[one.index()], samples);
                               });
  work.node_costs = tabulated([class_of = work.class_of, of_classes = work.class_costs](std::int64_t samples) {
    const auto& costs = of_classes(samples);
    std::vector<NodeCost> row;
    row.reserve(class_of.size());
    for (const int one : class_of) row.push_back(costs[static_cast<std::size_t>(one)]);
    return row;
  });
}

/// By node, the regions that have a part of it.
[[nodiscard]] inline std::vector<std::vector<int>> regions_of_nodes(const std::vector<TensorRegion>& regions,
                                                                    std::size_t nodes) {
  std::vector<std::vector<int>> out;
  if (!regions.empty()) out.resize(nodes);
  for (std::size_t r = 0; r < regions.size(); ++r) {
    for (const NodeId node : regions[r].atoms) out[node.index()].push_back(static_cast<int>(r));
  }
  return out;
}

/// By id: the region that lists it; -1 = none.
template <class Id>
[[nodiscard]] std::vector<int> region_of_each(const std::vector<TensorRegion>& regions,
                                              std::vector<Id> TensorRegion::*listed, std::size_t count) {
  std::vector<int> region_of(count, -1);
  for (std::size_t r = 0; r < regions.size(); ++r) {
    for (const Id id : regions[r].*listed) region_of[id.index()] = static_cast<int>(r);
  }
  return region_of;
}

template <class M>
void set_regions(Workload& work, const ModelProfile& profile, const M& model) {
  const std::string fault = fault_in_tensor_regions(profile);
  if (!fault.empty()) throw InvalidArgument(fault);
  work.regions = profile.tensor_regions;
  work.regions_of = regions_of_nodes(work.regions, profile.graph.node_count());
  if (work.regions.empty()) return;
  const auto region_of = region_of_each(work.regions, &TensorRegion::atoms, profile.graph.node_count());
  const auto of_parameter = region_of_each(work.regions, &TensorRegion::parameters, profile.parameters.size());
  work.node_cost_in_shards = [&profile, &model, whole = work.node_cost, region_of](
                                 NodeId node, std::int64_t samples, const std::vector<int>& region_shards) {
    const NodeCost cost = whole(node, samples);
    const int r = region_of[node.index()];
    const int shards = r < 0 ? 1 : region_shards[static_cast<std::size_t>(r)];
    if (shards == 1) return cost;
    const TensorRegion& region = profile.tensor_regions[static_cast<std::size_t>(r)];
    return cost_of_shard(cost, profile.graph, model, node, static_cast<double>(samples), region, shards);
  };
  work.largest_trained_in_shards = [&profile, of_parameter](NodeId node, const std::vector<int>& region_shards) {
    Bytes sum{};
    int count = 0;
    std::vector<ParameterId> read = profile.graph[node].parameters;
    make_set(read);
    for (const ParameterId id : read) {
      if (!profile.parameters[id.index()].trainable) continue;
      ++count;
      const int r = of_parameter[id.index()];
      const int shards = r < 0 ? 1 : region_shards[static_cast<std::size_t>(r)];
      const Bytes bytes = profile.parameters[id.index()].bytes;
      sum += shards == 1 ? bytes : part_of_shard(bytes, profile.tensor_regions[static_cast<std::size_t>(r)], shards);
    }
    return LargestTrained::of(sum, count);
  };
}

}  // namespace detail

/// A workload of any graph with any cost model. Refers to `graph` and `model`, which must outlive it.
/// @throws InvalidArgument if the graph is empty or has a cycle (named)
template <BidirectionalGraph G, CostModel<G> M>
[[nodiscard]] Workload make_workload(const G& graph, const M& model) {
  expect(graph.node_count() > 0, "the graph to plan has no node; there is nothing to divide");
  (void)topological_order(graph);
  Workload work;
  static_cast<LinkCosts&>(work) = detail::link_costs(model);
  work.graph.reserve(graph.node_count(), graph.edge_count());
  for (const NodeId node : nodes_of(graph)) {
    WorkNode unit;
    unit.name = "node " + std::to_string(node.value());
    unit.members = {node};
    if constexpr (HasResidentBytes<M, G>) unit.resident = model.resident(graph, node);
    if constexpr (HasEconomyOfScale<M, G>) unit.economy_of_scale = model.economy_of_scale(graph, node);
    work.graph.add_node(std::move(unit));
  }
  for (const EdgeId edge : edges_of(graph)) {
    work.graph.add_edge(graph.source(edge), graph.target(edge), model.value(graph, edge));
  }
  work.node_cost = [&graph, &model](NodeId node, std::int64_t samples) {
    return detail::checked(model.node(graph, node, static_cast<double>(samples)), node, samples);
  };
  work.node_costs = detail::tabulated(graph.node_count(), work.node_cost);
  return work;
}

/// A workload of a captured model. Refers to `profile` and `model`, which must outlive it.
/// @throws InvalidArgument if the graph is empty or has a cycle, a parameter, reader or writer does not exist, or a
/// tensor region is invalid
template <CostModel<Graph<OpProfile, ValueProfile>> M>
[[nodiscard]] Workload make_workload(const ModelProfile& profile, const M& model) {
  Workload work = make_workload(profile.graph, model);
  std::vector<bool> is_read(profile.parameters.size(), false);
  for (const NodeId node : profile.graph.nodes()) {
    const OpProfile& op = profile.graph[node];
    WorkNode& unit = work.graph[node];
    unit.name = op.name;
    unit.path = op.path;
    unit.whole_batch = op.whole_batch;
    unit.totals = op.totals;
    unit.batch_statistic = op.batch_statistic;
    unit.parameters = op.parameters;
    detail::make_set(unit.parameters);
    Bytes trained{};
    int count = 0;
    for (const ParameterId parameter : unit.parameters) {
      expect(parameter.index() < profile.parameters.size(), "an atom reads a parameter that the profile does not list");
      const ParameterProfile& read = profile.parameters[parameter.index()];
      if (read.trainable) trained += read.bytes, ++count;
      expect(!read.copy_by_call || !is_read[parameter.index()],
             "several atoms read a copy of a parameter that each call makes for one");
      is_read[parameter.index()] = true;
    }
    unit.largest_trained = LargestTrained::of(trained, count);
  }
  work.parameters = profile.parameters;
  work.inputs = profile.inputs;
  work.outputs = profile.outputs;
  work.held_beside = profile.held_beside;
  for (const auto& input : work.inputs) {
    for (const NodeId reader : input.readers) {
      expect(reader.index() < profile.graph.node_count(), "an input of the profile has a reader that does not exist");
    }
  }
  for (const auto& output : work.outputs) {
    expect(output.writer.index() < profile.graph.node_count(), "an output of the profile has no writer");
  }
  work.loss_mode = profile.loss_mode;
  work.chunked_heads = profile.chunked_heads;
  work.layers_by_inputs = profile.layers_by_inputs;
  work.hash = profile.hash;
  detail::set_regions(work, profile, model);
  if constexpr (CostsByValue<M>) detail::set_classes(work, profile.graph);
  return work;
}

namespace detail {

[[nodiscard]] inline WorkNode merged(const Graph<WorkNode, ValueProfile>& graph, const std::vector<NodeId>& members) {
  WorkNode block = graph[members.front()];
  for (const NodeId member : std::span(members).subspan(1)) {
    const WorkNode& node = graph[member];
    block.parameters.insert(block.parameters.end(), node.parameters.begin(), node.parameters.end());
    block.read_by_several.insert(block.read_by_several.end(), node.read_by_several.begin(), node.read_by_several.end());
    block.members.insert(block.members.end(), node.members.begin(), node.members.end());
    block.resident += node.resident;
    block.totals += node.totals;
    block.batch_statistic = block.batch_statistic || node.batch_statistic;
    block.largest_trained.add(node.largest_trained);
    if (node.whole_batch && !block.whole_batch) {
      block.whole_batch = true;
      block.name = node.name;
      block.path = node.path;
    }
  }
  std::sort(block.parameters.begin(), block.parameters.end());
  for (std::size_t i = 1; i < block.parameters.size(); ++i) {
    if (block.parameters[i] == block.parameters[i - 1]) block.read_by_several.push_back(block.parameters[i]);
  }
  make_set(block.parameters);
  make_set(block.read_by_several);
  std::sort(block.members.begin(), block.members.end());
  return block;
}

/// Adds the cost of `times` equal members to a block's cost.
inline void add_times(NodeCost& sum, const NodeCost& cost, double times) {
  sum.forward += cost.forward * times;
  sum.backward += cost.backward * times;
  sum.backward_weight += cost.backward_weight * times;
  sum.saved += cost.saved * static_cast<std::int64_t>(times);
  sum.deferred_weight += cost.deferred_weight * static_cast<std::int64_t>(times);
  sum.workspace = std::max(sum.workspace, cost.workspace);
  sum.forward_workspace = std::max(sum.forward_workspace, cost.forward_workspace);
}

/// The cost of a block: sums over its members, and the largest of their workspaces.
[[nodiscard]] inline std::function<NodeCost(NodeId, std::int64_t)> block_cost(const Workload& fine,
                                                                              const Partition& partition) {
  if (fine.class_of.empty()) {
    return [&fine, partition](NodeId block, std::int64_t samples) {
      NodeCost sum;
      for (const NodeId member : partition.members(BlockId(block.value())))
        add_times(sum, fine.node_cost(member, samples), 1);
      return sum;
    };
  }
  std::vector<std::map<int, int>> counts(partition.block_count());  // (class, nodes) of each block
  for (const NodeId node : fine.graph.nodes()) ++counts[partition.block_of(node).index()][fine.class_of[node.index()]];
  return [&fine, counts = std::move(counts)](NodeId block, std::int64_t samples) {
    const auto& costs = fine.class_costs(samples);
    NodeCost sum;
    for (const auto& [one, times] : counts[block.index()]) add_times(sum, costs[static_cast<std::size_t>(one)], times);
    return sum;
  };
}

/// By node: `cost` of the node and of the shards of its regions, cached.
template <class Cost>
[[nodiscard]] auto once_each(const std::vector<std::vector<int>>& regions_of, Cost cost) {
  using Value = std::invoke_result_t<Cost, NodeId, std::int64_t, const std::vector<int>&>;
  auto known = std::make_shared<std::map<std::tuple<int, std::int64_t, std::vector<int>>, Value>>();
  return [known, regions_of, cost](NodeId block, std::int64_t samples, const std::vector<int>& region_shards) {
    std::vector<int> own;
    for (const int r : regions_of[block.index()]) own.push_back(region_shards[static_cast<std::size_t>(r)]);
    const auto [entry, added] = known->try_emplace({block.value(), samples, std::move(own)});
    if (added) entry->second = cost(block, samples, region_shards);
    return entry->second;
  };
}

/// Sets the regions of the nodes as regions of their blocks.
inline void set_regions(Workload& coarse, const Workload& fine, const Partition& partition) {
  coarse.regions = fine.regions;
  for (TensorRegion& region : coarse.regions) {
    for (NodeId& node : region.atoms) node = node_of(partition.block_of(node));
    make_set(region.atoms);
  }
  coarse.regions_of = regions_of_nodes(coarse.regions, partition.block_count());
  if (coarse.regions.empty()) return;
  coarse.node_cost_in_shards = once_each(
      coarse.regions_of, [&fine, partition](NodeId block, std::int64_t samples, const std::vector<int>& region_shards) {
        const auto& costs = fine.node_costs(samples);
        NodeCost sum;
        for (const NodeId member : partition.members(BlockId(block.value()))) {
          const bool whole = fine.regions_of[member.index()].empty();
          add_times(sum, whole ? costs[member.index()] : fine.node_cost_in_shards(member, samples, region_shards), 1);
        }
        return sum;
      });
  coarse.largest_trained_in_shards =
      [largest =
           once_each(coarse.regions_of, [&fine, partition](NodeId block, std::int64_t, const auto& region_shards) {
             LargestTrained most;
             for (const NodeId member : partition.members(BlockId(block.value())))
               most.add(fine.largest_trained_in_shards(member, region_shards));
             return most;
           })](NodeId block, const std::vector<int>& region_shards) { return largest(block, 0, region_shards); };
}

/// Bundles parameters that one node alone reads, neighbours of one kind, up to the size of a bucket. With very many
/// parameters, counting them would take most of the time.
inline void bundle_parameters(Workload& work, Bytes bundle) {
  constexpr int kSeveral = -2;
  std::vector<int> reader(work.parameters.size(), -1);
  for (const NodeId node : work.graph.nodes()) {
    for (const ParameterId parameter : work.graph[node].parameters) {
      int& known = reader[parameter.index()];
      known = known == -1 ? node.value() : kSeveral;
    }
    for (const ParameterId parameter : work.graph[node].read_by_several) reader[parameter.index()] = kSeveral;
  }
  const auto region_of = region_of_each(work.regions, &TensorRegion::parameters, work.parameters.size());
  std::vector<ParameterProfile> bundles;
  std::vector<ParameterId> bundle_of(work.parameters.size());
  std::map<std::tuple<int, bool, bool, bool, int, int>, std::size_t>
      open;  // by reader, whether it is trained, read as a copy, as one of each call, shared, its region
  for (std::size_t p = work.parameters.size(); p-- > 0;) {  // gradients fill buckets from the last
    ParameterProfile& parameter = work.parameters[p];
    const auto key = std::tuple(reader[p], parameter.trainable, parameter.copy > Bytes(0), parameter.copy_by_call,
                                parameter.highest_zero, region_of[p]);
    const auto place = open.find(key);
    if (reader[p] >= 0 && place != open.end() && bundles[place->second].bytes < bundle) {
      bundles[place->second].bytes += parameter.bytes;
      bundles[place->second].elements += parameter.elements;
      bundles[place->second].copy += parameter.copy;
      bundle_of[p] = ParameterId::of(place->second);
      continue;
    }
    if (reader[p] >= 0) open.insert_or_assign(key, bundles.size());
    bundle_of[p] = ParameterId::of(bundles.size());
    bundles.push_back(std::move(parameter));
  }
  const std::size_t last = bundles.size() - 1;
  std::reverse(bundles.begin(), bundles.end());
  const auto renumber = [&](std::vector<ParameterId>& ids) {
    for (ParameterId& id : ids) id = ParameterId::of(last - bundle_of[id.index()].index());
    make_set(ids);
  };
  for (const NodeId node : work.graph.nodes()) {
    renumber(work.graph[node].parameters);
    renumber(work.graph[node].read_by_several);
  }
  for (TensorRegion& region : work.regions) renumber(region.parameters);
  work.parameters = std::move(bundles);
}

}  // namespace detail

/// The workload with the blocks of `partition` as nodes. Refers to `fine`, which must outlive it.
/// @param bundle  very many parameters that one block reads are bundled up to this size. Then memory shared among
/// replicas is rounded once for each bundle, not for each parameter
/// @throws InvalidArgument if the quotient by `partition` has a cycle
[[nodiscard]] inline Workload contracted(const Workload& fine, const Partition& partition, Bytes bundle = Bytes(0)) {
  const QuotientGraph blocks = quotient(fine.graph, partition);
  Workload coarse;
  static_cast<LinkCosts&>(coarse) = fine;
  for (const NodeId block : blocks.nodes()) coarse.graph.add_node(detail::merged(fine.graph, blocks[block]));
  for (const EdgeId edge : blocks.edges()) {
    for (const EdgeId original : blocks[edge]) {
      coarse.graph.add_edge(blocks.source(edge), blocks.target(edge), fine.graph[original]);
    }
  }
  coarse.parameters = fine.parameters;
  coarse.inputs = fine.inputs;
  for (auto& input : coarse.inputs) {
    for (NodeId& reader : input.readers) reader = node_of(partition.block_of(reader));
  }
  coarse.outputs = fine.outputs;
  coarse.held_beside = fine.held_beside;
  for (auto& output : coarse.outputs) output.writer = node_of(partition.block_of(output.writer));
  coarse.loss_mode = fine.loss_mode;
  coarse.hash = fine.hash;
  coarse.node_cost = detail::block_cost(fine, partition);
  coarse.node_costs = detail::tabulated(partition.block_count(), coarse.node_cost);
  detail::set_regions(coarse, fine, partition);
  if (bundle > Bytes(0) && fine.parameters.size() >= SearchBudget{}.many_nodes)
    detail::bundle_parameters(coarse, bundle);
  return coarse;
}

}  // namespace autopar
