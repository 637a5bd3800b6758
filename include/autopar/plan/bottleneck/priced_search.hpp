#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <autopar/plan/bottleneck/answer.hpp>
#include <autopar/plan/bottleneck/least_needs.hpp>
#include <autopar/plan/bottleneck/priced_check.hpp>
#include <autopar/plan/bottleneck/proximal_bundle.hpp>
#include <autopar/plan/bottleneck/stage_catalog.hpp>
#include <autopar/plan/bottleneck/stage_prices.hpp>
#include <autopar/plan/bottleneck/tables.hpp>

namespace autopar::detail {

/// Decides whether a pipeline exists whose stages all take at most a limit, by prices of nodes (`StagePrices`) first: a
/// bound above the devices at hand is a no. Otherwise few stages are left that a pipeline may have, and a dynamic program
/// over them decides (`PricedCheck`).
///
/// Prices are raised in rounds: each with the stages that are nearly worth their devices at the prices of the round
/// before, and a bound for those that are left out. Prices stay for the next limit.
///
/// Refers to its arguments, which must outlive it.
class PricedSearch {
 public:
  PricedSearch(const VariantTables& tables, const DownsetLattice& tails)
      : tables_(tables), tails_(tails), least_(tables), catalog_(tables, least_), stages_(tables, least_, catalog_),
        check_(tables, tails, catalog_, stages_), fit_(tables) {}
  PricedSearch(const PricedSearch&) = delete;  // parts refer to each other
  PricedSearch& operator=(const PricedSearch&) = delete;

  [[nodiscard]] static bool handles(const VariantTables& tables) {
    return tables.graph.node_count() <= StageCatalog::kMostNodes && tables.replicas.size() < StageCatalog::kNever;
  }

  /// Devices that any pipeline needs. @param states  budget, what is used is taken off
  [[nodiscard]] double bound(double limit, std::int64_t& states) {
    std::size_t most = prices_.empty() ? kFewestSets : kMostSets;
    start_at(limit * (1 + kRounding));
    double value = 0;
    for (int round = 0; round < kMostRounds && states > 0; ++round) {
      const double before = value;
      value = raise(most, states);
      if (too_many(value)) return value;
      if (round == 0 || value - before > 0.25 * (tables_.devices - value)) continue;
      if (most >= kMostSets) break;
      most = std::min(most * 3, kMostSets);
    }
    return value;
  }

  [[nodiscard]] bool too_many(double devices) const { return devices > tables_.devices + kMargin; }

  [[nodiscard]] Answer run(double limit, std::int64_t& states) {
    double value = 0;
    const double tighter = limit * (1 + kRounding);
    if (tighter <= complete_for_ && tighter > 0.995 * complete_for_) {
      catalog_.tighten(tighter);  // as good as a new one, at the prices that it was made for
    } else {
      value = bound(limit, states);
      if (too_many(value)) return Answer::kNo;
      if (states <= 0) return Answer::kUnknown;
      const bool all = catalog_.build(limit_, prices_, tables_.devices - value + 4 * kMargin, kMostAtLast);
      charge(states, catalog_.size());
      if (!all) return Answer::kUnknown;
      complete_for_ = limit_;
    }
    stages_.reset();
    value = stages_.evaluate(catalog_.prices(), gradient_);
    charge(states, 0);
    if (too_many(value)) return Answer::kNo;
    if (states <= 0) return Answer::kUnknown;
    return check_.run(value, states);
  }

  /// The pipeline that the last run found. @pre it said yes
  [[nodiscard]] std::vector<VariantStage> stages() {
    std::vector<VariantStage> stages;
    for (const PricedCheck::Step& step : check_.steps()) {
      NodeSet nodes = tails_.members(step.to);
      nodes -= tails_.members(step.from);
      VariantStage stage;
      std::vector<char> inside(tables_.graph.node_count(), 0);
      for (const NodeId node : nodes) {
        stage.nodes.push_back(node);
        inside[node.index()] = 1;
      }
      stage.replicas = tables_.replicas[step.d];
      stage.tensor_degree = tables_.tensor_degrees[step.t];
      stage.variants =
          fit_.fastest({stage.nodes, inside, step.t, step.d, StagePrices::in_flight(step.sum, stage.replicas)});
      stages.push_back(std::move(stage));
    }
    return stages;
  }

 private:
  static constexpr double kRounding = 1e-13;  // sums of doubles in another order
  static constexpr double kMargin = 1e-6;
  static constexpr std::size_t kFewestSets = 20'000, kMostSets = 100'000, kMostAtLast = 600'000;
  static constexpr int kMostRounds = 20, kMostSteps = 60;

  void charge(std::int64_t& states, std::size_t sets) {
    states -= 2 * static_cast<std::int64_t>(sets) + stages_.spent();
  }

  /// Prices of the limit before are as many devices more as the limit is shorter.
  void start_at(double limit) {
    if (prices_.empty()) {
      prices_.assign(tables_.graph.node_count(), std::numeric_limits<double>::infinity());
      for (std::size_t n = 0; n < prices_.size(); ++n) {
        for (std::size_t t = 0; t < tables_.tensor_degrees.size(); ++t) {
          prices_[n] = std::min(prices_[n], least_.at(NodeId::of(n), t).work * least_.work_share() *
                                                tables_.tensor_degrees[t] / limit);
        }
      }
    } else {
      for (double& price : prices_)
        price *= limit_ / limit;
    }
    limit_ = limit;
  }

  [[nodiscard]] double raise(std::size_t most, std::int64_t& states) {
    complete_for_ = 0;
    const bool all = catalog_.build(limit_, prices_, margin_, std::isfinite(margin_) ? most : kMostSets);
    charge(states, catalog_.size());
    if (!all) {
      if (!std::isfinite(margin_)) margin_ = tables_.devices / 4.0;
      while (!catalog_.build(limit_, prices_, margin_, most) && margin_ > kMargin) {
        charge(states, catalog_.size());
        margin_ *= 0.6;
      }
      charge(states, catalog_.size());
    }
    stages_.reset();
    const double first = stages_.evaluate(prices_, gradient_);
    const double norm = std::inner_product(gradient_.begin(), gradient_.end(), gradient_.begin(), 0.0);
    ProximalBundle bundle(prices_, first, gradient_, std::max(0.01 * tables_.devices, 0.2 * (tables_.devices - first)) / std::max(1.0, norm));
    for (int step = 0; step < kMostSteps && states > 0 && bundle.value() <= tables_.devices + kMargin; ++step) {
      const std::vector<double> at = bundle.propose();
      if (bundle.promised() < 0.02 * (tables_.devices - bundle.value()) + kMargin) break;
      const double value = stages_.evaluate(at, gradient_);
      bundle.learn(at, value, gradient_);
      charge(states, 0);
    }
    prices_ = bundle.best();
    if (std::isfinite(margin_)) margin_ *= 1.3;
    return bundle.value();
  }

  const VariantTables& tables_;
  const DownsetLattice& tails_;
  LeastNeeds least_;
  StageCatalog catalog_;
  StagePrices stages_;
  PricedCheck check_;
  VariantFit fit_;
  double limit_ = 0, margin_ = std::numeric_limits<double>::infinity();
  double complete_for_ = 0;  ///< limit for which the catalogue has all sets that a pipeline may have
  std::vector<double> prices_, gradient_;
};

}  // namespace autopar::detail
