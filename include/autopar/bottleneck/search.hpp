#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/bottleneck/check.hpp>
#include <autopar/bottleneck/result.hpp>
#include <autopar/bottleneck/tables.hpp>
#include <autopar/graph/algorithms/downsets.hpp>

namespace autopar {

/// The tails (sets of nodes closed under successors) of a graph, or nullopt if there are more than `most`.
[[nodiscard]] inline std::optional<DownsetLattice> tails_of(const VariantTables& tables, std::size_t most) {
  Graph<char, char> reversed;
  for (std::size_t i = 0; i < tables.graph.node_count(); ++i) reversed.add_node();
  for (const EdgeId edge : tables.graph.edges())
    reversed.add_edge(tables.graph.target(edge), tables.graph.source(edge));
  return enumerate_downsets(reversed, most);
}

/// Seconds of the slowest stage if all devices shared all work evenly: a lower bound.
[[nodiscard]] inline double even_share(const VariantTables& tables) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  double share = kNever, all = 0;
  for (std::size_t d = 0; d < tables.replicas.size(); ++d)
    share = std::min(share, tables.replicas[d] * tables.work_share[d]);
  for (const auto& degrees : tables.variants) {
    double least = kNever;
    for (std::size_t t = 0; t < degrees.size(); ++t) {
      for (const NodeVariant& v : degrees[t]) least = std::min(least, v.work * tables.tensor_degrees[t]);
    }
    all += least;
  }
  return all * share / tables.devices * (1 - 1e-12);
}

/// The pipeline whose slowest stage is fastest, with a proof: a search for the limit T below which no pipeline exists.
/// `BottleneckCheck` decides whether a limit can be met. Narrow checks find good plans quickly; the last full check
/// proves that no plan is faster.
///
/// Deterministic, and exact unless the budget ends. Refers to the tables, which must outlive it.
class BottleneckSearch {
 public:
  /// @param tails  of the tables' graph, see `tails_of`
  BottleneckSearch(const VariantTables& tables, const DownsetLattice& tails) : tables_(tables), check_(tables, tails) {}

  static constexpr double kGap = 1e-9;

  /// @param start       a plan to improve, may be empty; its bound must hold
  /// @param max_states  budget, about 50 ns each; if it ends, the result is the best plan so far and the last proven
  /// bound
  [[nodiscard]] BottleneckResult solve(BottleneckResult start, std::int64_t max_states) {
    BottleneckResult best = std::move(start);
    best.lower_bound = std::max(best.lower_bound, even_share(tables_));
    const std::int64_t all = left_ = max_states;
    reserve_ = all / 3 * 2;
    for (const std::size_t width : {3, 8, 20}) {
      if (width == 3 || check_.widest() > width) approach(width, best);
    }
    reserve_ = all / 4;
    prove(best);
    reserve_ = all / 10;
    for (const std::size_t width : {20, 50, 120}) {
      if (!proven(best) && check_.widest() > width) approach(width, best);
    }
    reserve_ = 0;
    if (!best.stages.empty() && !proven(best)) raise(best);
    best.states += all - std::max<std::int64_t>(0, left_);
    return best;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  /// An upper bound on the seconds of any stage of any plan.
  [[nodiscard]] double most_seconds() const {
    double all = 0;
    const auto most = [](const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); };
    for (const auto& degrees : tables_.variants) {
      double worst = 0;
      for (const auto& variants : degrees) {
        for (const NodeVariant& v : variants) {
          double border = 0;
          for (const double bytes : v.in) border += bytes;
          for (const double bytes : v.out) border += bytes;
          worst = std::max(worst, v.work * most(tables_.work_share) + border * most(tables_.border_cost) +
                                      v.parameters * most(tables_.parameter_cost));
        }
      }
      all += worst;
    }
    return std::max(all * (1 + 1e-9), 1e-30);  // limits are divisors
  }

  [[nodiscard]] static bool proven(const BottleneckResult& best) {
    return best.lower_bound >= best.seconds * (1 - kGap) * (1 - 1e-12);
  }

  /// Narrow checks: bisects, then approaches the best plan in ever smaller steps. Here kNo ends a step without a proof.
  void approach(std::size_t width, BottleneckResult& best) {
    if (best.stages.empty() && ask(most_seconds(), width, best) != detail::Answer::kYes) return;
    double low = best.lower_bound;
    while (low < best.seconds * 0.8) {
      const double middle = low > 0 ? std::sqrt(low * best.seconds) : best.seconds / 16;
      const detail::Answer answer = ask(middle, width, best);
      if (answer == detail::Answer::kUnknown) return;
      if (answer == detail::Answer::kNo) low = middle;
    }
    for (double step = 0.06; step > 0.003 && !proven(best);) {
      const double seconds = std::max(best.lower_bound, best.seconds * (1 - step));
      const detail::Answer answer = ask(seconds, width, best);
      if (answer == detail::Answer::kUnknown) return;
      if (answer == detail::Answer::kNo) step /= 3;
    }
  }

  /// Full checks near the best plan, until kNo proves it or the budget ends.
  void prove(BottleneckResult& best) {
    if (best.stages.empty()) {
      const detail::Answer answer = ask(most_seconds(), kAll, best);
      if (answer == detail::Answer::kNo && best.stages.empty()) best.lower_bound = kNever;
      if (answer != detail::Answer::kYes) return;
      approach(8, best);
    }
    for (double step = kGap; !proven(best);) {
      const double middle = best.lower_bound + (best.seconds - best.lower_bound) / 2;
      const bool near = best.lower_bound > 0.95 * best.seconds && best.lower_bound < (1 - 1e-4) * best.seconds;
      const double seconds = near ? middle : std::max(best.lower_bound, best.seconds * (1 - step));
      const detail::Answer answer = ask(seconds, kAll, best);
      if (answer == detail::Answer::kUnknown) return;
      step = answer == detail::Answer::kNo ? kGap : std::min(0.25, std::max(1e-4, step * 4));
    }
  }

  /// Spends the rest of the budget on the bound: full checks are cheap where few plans are possible.
  void raise(BottleneckResult& best) {
    const std::int64_t all = left_;
    for (double part = 0.5; part > 0.01 && left_ > all / 20;) {
      const double seconds = best.lower_bound + part * (best.seconds - best.lower_bound);
      reserve_ = std::max<std::int64_t>(0, left_ - all / 4);
      if (ask(seconds, kAll, best) != detail::Answer::kNo) part /= 2;
    }
  }

  /// Checks a limit; a better plan goes into `best`. Leaves the budget's reserve alone.
  [[nodiscard]] detail::Answer ask(double seconds, std::size_t width, BottleneckResult& best) {
    ++best.checks;
    std::int64_t states = left_ - reserve_;
    if (states <= 0) return detail::Answer::kUnknown;
    const detail::Answer answer = check_.run(seconds, width, states);
    left_ = reserve_ + states;
    if (answer == detail::Answer::kNo && check_.complete() && !best.stages.empty())
      best.lower_bound = std::max(best.lower_bound, seconds);
    if (answer != detail::Answer::kYes) return answer;
    auto stages = check_.stages();
    const double found = slowest_of(tables_, stages);
    if (!best.stages.empty() &&
        found >= best.seconds) {  // sums in another order: nothing is better beyond the last digits
      if (check_.complete()) best.lower_bound = std::max(best.lower_bound, seconds);
      return detail::Answer::kNo;
    }
    best.stages = std::move(stages);
    best.seconds = found;
    return answer;
  }

  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
  const VariantTables& tables_;
  detail::BottleneckCheck check_;
  std::int64_t left_ = 0, reserve_ = 0;  // states
};

}  // namespace autopar
