#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/bottleneck/result.hpp>
#include <autopar/bottleneck/tables.hpp>
#include <autopar/plan/concepts.hpp>

namespace autopar {

struct ExactBottleneckStaging;

/// The costs of a pipeline of variants.
struct PipelineTerms {
  Seconds slowest{};         ///< stage, a micro-batch
  double peak = 0;           ///< bytes of the fullest device
  std::int64_t devices = 0;  ///< in use
  int replicas = 0;          ///< sum of data degrees
};

/// The seconds that a pipeline's slowest stage takes for a micro-batch, without ramp-up and drain. Nodes have a choice
/// of variants, stages a choice of data and tensor degrees.
///
/// `Planner<SlowestStage>{}.plan(graph, costs, limits)`; include `exact_bottleneck_staging.hpp` or use your own policy.
/// @source Tarnawski, Narayanan, Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization", NeurIPS 2021
class SlowestStage {
 public:
  using policy_category = objective_policy_tag;
  using Solution = std::vector<VariantStage>;
  using Found = BottleneckResult;
  using DefaultStaging = ExactBottleneckStaging;

  /// @throws InvalidArgument as `make_tables`
  template <BidirectionalGraph G, VariantCostModel<G> M>
  SlowestStage(const G& graph, const M& costs, const DeviceLimits& limits)
      : tables_(make_tables(graph, costs, limits)) {}
  /// @throws InvalidArgument as `check_tables`
  explicit SlowestStage(VariantTables tables) : tables_(std::move(tables)) { check_tables(tables_); }

  [[nodiscard]] const VariantTables& tables() const { return tables_; }

  /// @pre each node is in one stage; degrees and variants exist
  [[nodiscard]] PipelineTerms operator()(const Solution& stages) const {
    PipelineTerms terms{.slowest = Seconds(slowest_of(tables_, stages))};
    for (std::size_t s = stages.size(); s-- > 0;) {
      const VariantStage& stage = stages[s];
      terms.replicas += stage.replicas;
      terms.devices += static_cast<std::int64_t>(stage.replicas) * stage.tensor_degree;
      const int in_flight = (terms.replicas + stage.replicas - 1) / stage.replicas;
      const auto t = static_cast<std::size_t>(
          std::find(tables_.tensor_degrees.begin(), tables_.tensor_degrees.end(), stage.tensor_degree) -
          tables_.tensor_degrees.begin());
      double held = 0;
      for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
        const auto& v = tables_.variants[stage.nodes[i].index()][t][static_cast<std::size_t>(stage.variants[i])];
        held += v.bytes_in_flight * in_flight + v.bytes;
      }
      terms.peak = std::max(terms.peak, held);
    }
    return terms;
  }

  struct TooLarge {
    NodeId node;
    double bytes;  ///< at least, with one micro-batch in flight
  };
  /// The first node that fits no device even alone; if there is one, there is no plan.
  [[nodiscard]] std::optional<TooLarge> too_large() const {
    for (const NodeId node : tables_.graph.nodes()) {
      double least = std::numeric_limits<double>::infinity();
      for (const auto& variants : tables_.variants[node.index()]) {
        for (const NodeVariant& v : variants) least = std::min(least, v.bytes_in_flight + v.bytes);
      }
      if (least > tables_.memory) return TooLarge{node, least};
    }
    return std::nullopt;
  }

  [[nodiscard]] static Seconds seconds(const PipelineTerms& terms) { return terms.slowest; }
  [[nodiscard]] bool fits(const PipelineTerms& terms) const {
    return terms.peak <= tables_.memory * (1 + 1e-12) && terms.devices <= tables_.devices &&
           terms.replicas <= tables_.most_replicas;
  }

 private:
  VariantTables tables_;
};
static_assert(Objective<SlowestStage>);

}  // namespace autopar
