#pragma once

#include <cstddef>
#include <vector>

#include <autopar/bottleneck/growing_stage.hpp>
#include <autopar/bottleneck/least_needs.hpp>
#include <autopar/bottleneck/tables.hpp>
#include <autopar/bottleneck/variant_fit.hpp>

namespace autopar::detail {

/// Decides whether a stage is fast enough and fits the memory under given degrees.
///
/// Refers to its arguments, which must outlive it.
class StageFit {
 public:
  StageFit(const VariantTables& tables, const LeastNeeds& least) : tables_(tables), least_(least), fit_(tables) {}

  /// Sums over a stage's nodes of the least that their variants need.
  struct Needs {
    double work = 0, border = 0, parameters = 0, in_flight = 0, bytes = 0;
    double most_waiting = 0;  ///< micro-batches in flight above which no variants fit the memory
  };

  [[nodiscard]] Needs needs(const GrowingStage& stage, std::size_t t) const {
    Needs sum;
    double in_flight = 0, bytes = 0;
    for (const NodeId node : stage.nodes()) {
      const LeastNeeds::Node& least = least_.at(node, t);
      sum.work += least.work;
      sum.parameters += least.parameters;
      sum.in_flight += least.in_flight;
      sum.bytes += least.bytes;
      in_flight += least.least_in_flight;
      bytes += least.least_bytes;
      std::size_t e = 0;
      for (const EdgeId edge : tables_.graph.in_edges(node)) {
        if (!stage.inside()[tables_.graph.source(edge).index()]) sum.border += least.in[e];
        ++e;
      }
      e = 0;
      for (const EdgeId edge : tables_.graph.out_edges(node)) {
        if (!stage.inside()[tables_.graph.target(edge).index()]) sum.border += least.out[e];
        ++e;
      }
    }
    sum.most_waiting = in_flight > 0 ? (tables_.memory - bytes) / in_flight : bytes <= tables_.memory ? kAny : 0;
    return sum;
  }

  /// @param needs  of the stage under the tensor degree
  /// @param d      position of the data degree
  [[nodiscard]] bool runs(const Needs& needs, const GrowingStage& stage, std::size_t t, std::size_t d, int in_flight,
                          double limit) {
    const double took = needs.work * tables_.work_share[d] + needs.border * tables_.border_cost[d] +
                        needs.parameters * tables_.parameter_cost[d];
    if (took > limit) return false;
    if (least_.uniform() && needs.in_flight * in_flight + needs.bytes <= tables_.memory) return true;
    const VariantFit::Stage whole{stage.nodes(), stage.inside(), t, d, in_flight};
    return least_.uniform() ? fit_.fits_with(whole, (limit - took) / tables_.work_share[d])
                            : fit_.fits_within(whole, limit);
  }

  /// The variants with the least seconds within memory; empty if nothing fits.
  [[nodiscard]] std::vector<int> fastest(const VariantFit::Stage& stage) { return fit_.fastest(stage); }

 private:
  static constexpr double kAny = 1e30;
  const VariantTables& tables_;
  const LeastNeeds& least_;
  VariantFit fit_;
};

}  // namespace autopar::detail
