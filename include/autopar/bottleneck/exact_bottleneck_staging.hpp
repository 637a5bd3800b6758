#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include <autopar/bottleneck/fold.hpp>
#include <autopar/bottleneck/negligible_nodes.hpp>
#include <autopar/bottleneck/objective.hpp>
#include <autopar/bottleneck/search.hpp>

namespace autopar {

namespace detail {

/// The tables with their nodes in one fixed order: its plans are plans of the tables, but its bound is no bound for
/// them.
[[nodiscard]] inline VariantTables in_a_line(VariantTables tables) {
  const auto order = topological_order(tables.graph);
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    tables.graph.add_edge(order[i], order[i + 1], 0);
    for (auto& variants : tables.variants[order[i].index()]) {
      for (NodeVariant& v : variants) v.out.push_back(0);
    }
    for (auto& variants : tables.variants[order[i + 1].index()]) {
      for (NodeVariant& v : variants) v.in.push_back(0);
    }
  }
  return tables;
}

}  // namespace detail

/// The pipeline whose slowest stage is fastest, with a proof; or the best plan within the budget, with a lower bound.
/// Folded away are nodes that cost nothing, and nodes at an end of the graph that cost almost nothing. For graphs with
/// many cuts the best plan along one topological order is found first.
/// @cost at most `max_states` states of about 30 to 60 ns each
struct ExactBottleneckStaging {
  using policy_category = staging_policy_tag;
  std::int64_t max_states = 9'000'000;
  std::size_t max_tails = 200'000;  ///< graphs with more cuts are planned along one topological order only

  [[nodiscard]] BottleneckResult search(const SlowestStage& objective) const {
    const VariantTables& tables = objective.tables();
    const detail::NegligibleNodes negligible(tables);
    if (negligible.empty()) return plan(tables, {});
    BottleneckResult result = plan(negligible.without_costs(), {});
    if (!result.stages.empty()) {
      if (negligible.settle(result.stages)) {
        result.seconds = slowest_of(tables, result.stages);
        return result;
      }
      result.stages.clear();  // they do not fit beside their neighbours: search with their costs
      result.seconds = std::numeric_limits<double>::infinity();
      return plan(tables, std::move(result));
    }
    return result;
  }

 private:
  /// @param start  no plan, but a lower bound that holds
  [[nodiscard]] BottleneckResult plan(const VariantTables& all, BottleneckResult start) const {
    const detail::FreeNodes free(all);
    const VariantTables& tables = free.folded();
    const double bound = start.lower_bound;
    auto tails = tails_of(tables, max_tails);
    if (!tails || tails->size() > 2 * tables.graph.node_count()) {
      const VariantTables line = detail::in_a_line(tables);
      const auto line_tails = tails_of(line, tables.graph.node_count() + 1);
      start = BottleneckSearch(line, *line_tails).solve(std::move(start), tails ? max_states / 10 : max_states);
    }
    start.lower_bound = std::max(bound, even_share(tables));  // the bound of one order is no bound for all
    if (tails) start = BottleneckSearch(tables, *tails).solve(std::move(start), max_states);
    start.stages = free.unfold(start.stages);
    return start;
  }
};
static_assert(StagingPolicy<ExactBottleneckStaging, SlowestStage>);

/// The same search for existing tables.
/// @throws InvalidArgument as `check_tables`
[[nodiscard]] inline BottleneckResult solve_bottleneck(const VariantTables& tables,
                                                       const ExactBottleneckStaging& staging = {}) {
  return staging.search(SlowestStage(tables));
}

}  // namespace autopar
