#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <autopar/bottleneck/tables.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>

namespace autopar {

namespace detail {

/// Tables without the nodes that cost nothing wherever they run. Such a node can always join the earliest stage that
/// its predecessors allow. Edges keep its successors after its predecessors.
class FreeNodes {
 public:
  explicit FreeNodes(const VariantTables& tables) : tables_(tables), order_(topological_order(tables.graph)) {
    for (const NodeId node : tables.graph.nodes()) free_.push_back(is_free(node));
    if (std::find(free_.begin(), free_.end(), false) == free_.end()) free_.front() = false;
    fold();
  }

  [[nodiscard]] const VariantTables& folded() const { return folded_; }

  /// Stages of the folded tables as stages of all nodes.
  [[nodiscard]] std::vector<VariantStage> unfold(const std::vector<VariantStage>& folded) const {
    if (folded.empty()) return {};  // no plan
    std::vector<VariantStage> stages = folded;
    std::vector<std::size_t> stage_of(tables_.graph.node_count(), 0);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      for (NodeId& node : stages[s].nodes) {
        node = original_[node.index()];
        stage_of[node.index()] = s;
      }
    }
    for (const NodeId node : order_) {
      if (!free_[node.index()]) continue;
      for (const NodeId before : tables_.graph.predecessors(node))
        stage_of[node.index()] = std::max(stage_of[node.index()], stage_of[before.index()]);
      VariantStage& stage = stages[stage_of[node.index()]];
      stage.nodes.push_back(node);
      stage.variants.push_back(0);
    }
    return stages;
  }

 private:
  [[nodiscard]] bool is_free(NodeId node) const {
    const auto nothing = [](double value) { return value == 0; };
    for (const auto& variants : tables_.variants[node.index()]) {
      if (variants.empty()) return false;  // it forbids a tensor degree
      for (const NodeVariant& v : variants) {
        const bool edges =
            std::all_of(v.in.begin(), v.in.end(), nothing) && std::all_of(v.out.begin(), v.out.end(), nothing);
        if (!edges || v.work != 0 || v.bytes_in_flight != 0 || v.bytes != 0 || v.parameters != 0) return false;
      }
    }
    // Its neighbours must not pay for its edges either.
    for (const EdgeId edge : tables_.graph.in_edges(node)) {
      if (pays(tables_.graph.source(edge), edge, false)) return false;
    }
    for (const EdgeId edge : tables_.graph.out_edges(node)) {
      if (pays(tables_.graph.target(edge), edge, true)) return false;
    }
    return true;
  }
  [[nodiscard]] bool pays(NodeId node, EdgeId edge, bool incoming) const {
    const auto edges = incoming ? tables_.graph.in_edges(node) : tables_.graph.out_edges(node);
    const auto at = static_cast<std::size_t>(std::find(edges.begin(), edges.end(), edge) - edges.begin());
    for (const auto& variants : tables_.variants[node.index()]) {
      for (const NodeVariant& v : variants) {
        if ((incoming ? v.in : v.out)[at] != 0) return true;
      }
    }
    return false;
  }

  void fold() {
    folded_.tensor_degrees = tables_.tensor_degrees;
    folded_.replicas = tables_.replicas;
    folded_.work_share = tables_.work_share;
    folded_.border_cost = tables_.border_cost;
    folded_.parameter_cost = tables_.parameter_cost;
    folded_.devices = tables_.devices;
    folded_.most_replicas = tables_.most_replicas;
    folded_.memory = tables_.memory;
    std::vector<NodeId> to_folded(free_.size());
    for (const NodeId node : tables_.graph.nodes()) {
      if (free_[node.index()]) continue;
      to_folded[node.index()] = folded_.graph.add_node(tables_.graph[node]);
      original_.push_back(node);
      folded_.variants.push_back(tables_.variants[node.index()]);
      for (auto& variants : folded_.variants.back()) {
        for (NodeVariant& v : variants) v.in.clear(), v.out.clear();
      }
    }
    // Edges in their original order, so that each finds its bytes; then the precedences that free nodes imply.
    for (const EdgeId edge : tables_.graph.edges()) {
      const NodeId from = tables_.graph.source(edge), to = tables_.graph.target(edge);
      if (free_[from.index()] || free_[to.index()]) continue;
      folded_.graph.add_edge(to_folded[from.index()], to_folded[to.index()], 0);
      copy_bytes(from, to_folded[from.index()], edge, false);
      copy_bytes(to, to_folded[to.index()], edge, true);
    }
    add_orders(to_folded);
  }

  void copy_bytes(NodeId node, NodeId folded, EdgeId edge, bool incoming) {
    const auto edges = incoming ? tables_.graph.in_edges(node) : tables_.graph.out_edges(node);
    const auto at = static_cast<std::size_t>(std::find(edges.begin(), edges.end(), edge) - edges.begin());
    for (std::size_t t = 0; t < tables_.tensor_degrees.size(); ++t) {
      for (std::size_t v = 0; v < tables_.variants[node.index()][t].size(); ++v) {
        const NodeVariant& from = tables_.variants[node.index()][t][v];
        NodeVariant& to = folded_.variants[folded.index()][t][v];
        (incoming ? to.in : to.out).push_back((incoming ? from.in : from.out)[at]);
      }
    }
  }

  void add_orders(const std::vector<NodeId>& to_folded) {
    std::vector<std::vector<NodeId>> before(free_.size());  // kept nodes that lead to a free one through free ones
    for (const NodeId node : order_) {
      for (const NodeId earlier : tables_.graph.predecessors(node)) {
        if (!free_[earlier.index()]) {
          if (free_[node.index()]) before[node.index()].push_back(earlier);
          continue;
        }
        auto& list = before[node.index()];
        list.insert(list.end(), before[earlier.index()].begin(), before[earlier.index()].end());
      }
      auto& list = before[node.index()];
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
      if (free_[node.index()]) continue;
      for (const NodeId earlier : list) add_order(to_folded[earlier.index()], to_folded[node.index()]);
    }
  }
  void add_order(NodeId from, NodeId to) {
    folded_.graph.add_edge(from, to, 0);
    for (auto& variants : folded_.variants[from.index()]) {
      for (NodeVariant& v : variants) v.out.push_back(0);
    }
    for (auto& variants : folded_.variants[to.index()]) {
      for (NodeVariant& v : variants) v.in.push_back(0);
    }
  }

  const VariantTables& tables_;
  std::vector<NodeId> order_;
  std::vector<bool> free_;
  std::vector<NodeId> original_;  // by folded node
  VariantTables folded_;
};

}  // namespace detail

}  // namespace autopar
