#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <autopar/bottleneck/tables.hpp>

namespace autopar::detail {

/// Nodes at the ends of a graph that take no time and almost no memory, such as masks and token ids. Without their
/// costs they are no part of the search (`FreeNodes`). What the search finds and proves holds for them if they fit
/// beside their only neighbour.
class NegligibleNodes {
 public:
  explicit NegligibleNodes(const VariantTables& tables) : tables_(tables) {
    std::vector<bool> taken(tables.graph.node_count(), false);
    for (const NodeId node : tables.graph.nodes()) {
      if (tables.graph.in_edges(node).size() + tables.graph.out_edges(node).size() != 1 || !is_negligible(node))
        continue;
      const NodeId host = host_of(node);
      if (taken[host.index()]) continue;  // the neighbour is moved itself
      taken[node.index()] = true;
      negligible_.push_back(node);
    }
  }

  [[nodiscard]] bool empty() const { return negligible_.empty(); }

  /// The tables in which these nodes cost nothing.
  [[nodiscard]] VariantTables without_costs() const {
    VariantTables tables = tables_;
    for (const NodeId node : negligible_) {
      for (auto& variants : tables.variants[node.index()]) {
        for (NodeVariant& v : variants) {
          v.bytes_in_flight = v.bytes = 0;
          std::fill(v.in.begin(), v.in.end(), 0.0);
          std::fill(v.out.begin(), v.out.end(), 0.0);
        }
      }
      const NodeId host = host_of(node);
      const bool before = !tables_.graph.out_edges(node).empty();
      const EdgeId edge = before ? tables_.graph.out_edges(node)[0] : tables_.graph.in_edges(node)[0];
      const auto edges = before ? tables_.graph.in_edges(host) : tables_.graph.out_edges(host);
      const auto at = static_cast<std::size_t>(std::find(edges.begin(), edges.end(), edge) - edges.begin());
      for (auto& variants : tables.variants[host.index()]) {
        for (NodeVariant& v : variants) (before ? v.in : v.out)[at] = 0;
      }
    }
    return tables;
  }

  /// Moves each of them into the stage of its neighbour.
  /// @return whether they fit there, and no stage becomes empty
  [[nodiscard]] bool settle(std::vector<VariantStage>& stages) const {
    std::vector<bool> negligible(tables_.graph.node_count(), false);
    for (const NodeId node : negligible_) negligible[node.index()] = true;
    std::vector<std::size_t> stage_of(negligible.size(), 0);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      VariantStage kept = stages[s];
      kept.nodes.clear();
      kept.variants.clear();
      for (std::size_t i = 0; i < stages[s].nodes.size(); ++i) {
        if (negligible[stages[s].nodes[i].index()]) continue;
        kept.nodes.push_back(stages[s].nodes[i]);
        kept.variants.push_back(stages[s].variants[i]);
        stage_of[kept.nodes.back().index()] = s;
      }
      stages[s] = std::move(kept);
    }
    for (const NodeId node : negligible_) {
      VariantStage& stage = stages[stage_of[host_of(node).index()]];
      stage.nodes.push_back(node);
      stage.variants.push_back(lightest(node, position_of(stage.tensor_degree)));
    }
    return fit(stages);
  }

 private:
  static constexpr double kNegligible = 1e-4;  ///< share of the memory

  [[nodiscard]] NodeId host_of(NodeId node) const {
    const auto& graph = tables_.graph;
    return graph.out_edges(node).empty() ? graph.source(graph.in_edges(node)[0])
                                         : graph.target(graph.out_edges(node)[0]);
  }
  [[nodiscard]] bool is_negligible(NodeId node) const {
    for (const auto& variants : tables_.variants[node.index()]) {
      if (variants.empty()) return false;  // it forbids a tensor degree
      for (const NodeVariant& v : variants) {
        if (v.work != 0 || v.parameters != 0 || v.bytes_in_flight + v.bytes > kNegligible * tables_.memory)
          return false;
      }
    }
    return true;
  }
  [[nodiscard]] std::size_t position_of(int degree) const {
    const auto& degrees = tables_.tensor_degrees;
    return static_cast<std::size_t>(std::find(degrees.begin(), degrees.end(), degree) - degrees.begin());
  }
  [[nodiscard]] int lightest(NodeId node, std::size_t t) const {
    const auto& variants = tables_.variants[node.index()][t];
    const auto least =
        std::min_element(variants.begin(), variants.end(), [](const NodeVariant& a, const NodeVariant& b) {
          return a.bytes_in_flight + a.bytes < b.bytes_in_flight + b.bytes;
        });
    return static_cast<int>(least - variants.begin());
  }
  [[nodiscard]] bool fit(const std::vector<VariantStage>& stages) const {
    int sum = 0;
    for (std::size_t s = stages.size(); s-- > 0;) {
      const VariantStage& stage = stages[s];
      if (stage.nodes.empty()) return false;
      sum += stage.replicas;
      const int in_flight = (sum + stage.replicas - 1) / stage.replicas;
      const std::size_t t = position_of(stage.tensor_degree);
      double held = 0;
      for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
        const NodeVariant& v = tables_.variants[stage.nodes[i].index()][t][static_cast<std::size_t>(stage.variants[i])];
        held += v.bytes_in_flight * in_flight + v.bytes;
      }
      if (held > tables_.memory) return false;
    }
    return true;
  }

  const VariantTables& tables_;
  std::vector<NodeId> negligible_;
};

}  // namespace autopar::detail
