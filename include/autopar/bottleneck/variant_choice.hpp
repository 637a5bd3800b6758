#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace autopar::detail {

/// Chooses one item of each class at the least cost within a byte limit: an exact multiple-choice knapsack.
///
/// Partial choices are a front of (bytes, cost), so classes with equal bytes fold by themselves. A choice is dropped if
/// its Lagrangian bound is above the cost of a known solution. Linear in classes if bytes repeat. If all bytes differ,
/// the bound keeps the front small.
/// @source Nemhauser and Ullmann, Discrete dynamic programming and capital allocation, Management Science 15(9), 1969
class VariantChoice {
 public:
  struct Item {
    double bytes, cost;
    int id;
  };
  using Class = std::vector<Item>;

  struct Solution {
    double cost = std::numeric_limits<double>::infinity();
    std::vector<int> chosen;  ///< ids, by class; empty if nothing fits
  };

  /// @param classes  none empty
  [[nodiscard]] static Solution solve(std::vector<Class> classes, double limit) {
    for (Class& items : classes) drop_dominated(items);
    return VariantChoice(std::move(classes), limit).run();
  }

  /// Sorts by bytes and drops dominated items: bytes ascend, costs descend.
  static void drop_dominated(Class& items) {
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.cost != b.cost ? a.cost < b.cost : a.id < b.id;
    });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (kept == 0 || items[i].cost < items[kept - 1].cost) items[kept++] = items[i];
    }
    items.resize(kept);
  }

 private:
  struct Point {
    double bytes, cost;
    std::int32_t before;
    std::int32_t id;
  };

  VariantChoice(std::vector<Class> classes, double limit) : classes_(std::move(classes)), limit_(limit) {}

  [[nodiscard]] Solution run() {
    double least = 0, fastest = 0;
    for (const Class& items : classes_) {
      least += items.front().bytes;
      fastest += items.back().bytes;
    }
    if (least > limit_) return {};
    Solution best;
    if (fastest <= limit_) {
      best.cost = 0;
      for (const Class& items : classes_) {
        best.cost += items.back().cost;
        best.chosen.push_back(items.back().id);
      }
      return best;
    }
    relax(least, best);
    return exact(std::move(best));
  }

  /// The linear relaxation: from the smallest items up along the steepest steps of each class's lower hull. Gives a
  /// solution, and the price of a byte for bounds.
  void relax(double bytes, Solution& best) {
    struct Step {
      double gain;  // cost saved per byte
      std::size_t of, to;
    };
    std::vector<Step> steps;
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      const Class& items = classes_[c];
      for (std::size_t from = 0; from + 1 < items.size();) {
        std::size_t steepest = from + 1;
        for (std::size_t to = from + 2; to < items.size(); ++to) {
          if (gain(items[from], items[to]) >= gain(items[from], items[steepest])) steepest = to;
        }
        steps.push_back({gain(items[from], items[steepest]), c, steepest});
        from = steepest;
      }
    }
    std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.gain > b.gain; });
    std::vector<std::size_t> at(classes_.size(), 0);
    for (const Step& step : steps) {
      const Class& items = classes_[step.of];
      const double more = items[step.to].bytes - items[at[step.of]].bytes;
      if (bytes + more > limit_) {
        if (price_ == 0) price_ = step.gain;
        continue;
      }
      if (step.to < at[step.of]) continue;
      bytes += more;
      at[step.of] = step.to;
    }
    best.cost = 0;
    best.chosen.clear();
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      best.cost += classes_[c][at[c]].cost;
      best.chosen.push_back(classes_[c][at[c]].id);
    }
  }
  [[nodiscard]] static double gain(const Item& a, const Item& b) { return (a.cost - b.cost) / (b.bytes - a.bytes); }

  [[nodiscard]] Solution exact(Solution best) const {
    const std::size_t n = classes_.size();
    std::vector<double> least(n + 1, 0), priced(n + 1, 0);  // of the classes from c on
    for (std::size_t c = n; c-- > 0;) {
      double low = std::numeric_limits<double>::infinity();
      for (const Item& item : classes_[c]) low = std::min(low, item.cost + price_ * item.bytes);
      least[c] = least[c + 1] + classes_[c].front().bytes;
      priced[c] = priced[c + 1] + low;
    }
    std::vector<std::vector<Point>> fronts{{{0, 0, -1, -1}}};
    for (std::size_t c = 0; c < n; ++c) {
      std::vector<Point> next;
      for (std::size_t i = 0; i < fronts[c].size(); ++i) {
        for (const Item& item : classes_[c]) {
          const double bytes = fronts[c][i].bytes + item.bytes, cost = fronts[c][i].cost + item.cost;
          if (bytes + least[c + 1] > limit_) break;
          if (cost + price_ * (bytes - limit_) + priced[c + 1] >= best.cost * (1 + 1e-15)) continue;
          next.push_back({bytes, cost, static_cast<std::int32_t>(i), item.id});
        }
      }
      std::sort(next.begin(), next.end(), [](const Point& a, const Point& b) {
        return a.bytes != b.bytes ? a.bytes < b.bytes : a.cost < b.cost;
      });
      std::vector<Point> front;
      for (const Point& point : next) {
        if (front.empty() || point.cost < front.back().cost) front.push_back(point);
      }
      fronts.push_back(std::move(front));
    }
    if (fronts[n].empty() || fronts[n].back().cost >= best.cost) return best;
    best.cost = fronts[n].back().cost;
    std::int32_t i = static_cast<std::int32_t>(fronts[n].size()) - 1;
    for (std::size_t c = n; c > 0; --c) {
      const Point& point = fronts[c][static_cast<std::size_t>(i)];
      best.chosen[c - 1] = point.id;
      i = point.before;
    }
    return best;
  }

  std::vector<Class> classes_;
  double limit_;
  double price_ = 0;
};

}  // namespace autopar::detail
