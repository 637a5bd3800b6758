#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace autopar::detail {

/// Maximises a concave function of which each evaluation gives the value and a supergradient: steps from the best point
/// so far to where the known tangents, minus a quadratic penalty for the distance, are largest.
/// @source Kiwiel, Proximity control in bundle methods, Math. Programming 46, 1990
class ProximalBundle {
 public:
  using Point = std::vector<double>;

  /// @param tau  length of a step for a gradient of one
  ProximalBundle(Point start, double value, const Point& gradient, double tau)
      : best_(std::move(start)), value_(value), tau_(tau) {
    add(gradient, 0);
  }

  [[nodiscard]] const Point& best() const { return best_; }
  [[nodiscard]] double value() const { return value_; }

  /// Where to evaluate next.
  [[nodiscard]] Point propose() {
    weigh();
    Point at = best_;
    direction_.assign(best_.size(), 0);
    for (std::size_t i = 0; i < cuts_.size(); ++i) {
      for (std::size_t k = 0; k < at.size(); ++k)
        direction_[k] += weight_[i] * cuts_[i].gradient[k];
    }
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < cuts_.size(); ++i)
      error += weight_[i] * cuts_[i].error;
    for (std::size_t k = 0; k < at.size(); ++k) {
      norm += direction_[k] * direction_[k];
      at[k] += tau_ * direction_[k];
    }
    promised_ = tau_ * norm + error;
    return at;
  }
  /// Increase that the tangents promise of the last proposal: about what is still to be had.
  [[nodiscard]] double promised() const { return promised_; }

  /// The value and the gradient at the last proposal.
  void learn(const Point& at, double value, const Point& gradient) {
    double ahead = 0;  // along the gradient, from the new point to the best
    for (std::size_t k = 0; k < at.size(); ++k)
      ahead += gradient[k] * (best_[k] - at[k]);
    if (value > value_ + 0.05 * promised_) {
      const double rise = value - value_;
      for (Cut& cut : cuts_) {
        double shift = 0;
        for (std::size_t k = 0; k < at.size(); ++k)
          shift += cut.gradient[k] * (at[k] - best_[k]);
        cut.error = std::max(0.0, cut.error + shift - rise);
      }
      if (rise > 0.5 * promised_) tau_ *= 2;
      best_ = at;
      value_ = value;
      failures_ = 0;
      add(gradient, 0);
      return;
    }
    const double error = std::max(0.0, value + ahead - value_);
    if (++failures_ >= 4 && error > promised_) {
      tau_ *= 0.6;
      failures_ = 0;
    }
    add(gradient, error);
  }

 private:
  static constexpr std::size_t kMostCuts = 60;
  struct Cut {
    Point gradient;
    double error;  ///< of the tangent at the best point: how far it lies above
  };

  void add(const Point& gradient, double error) {
    if (cuts_.size() == kMostCuts) drop();
    cuts_.push_back({gradient, error});
    weight_.push_back(cuts_.size() == 1 ? 1 : 0);
    std::vector<double> row;
    for (const Cut& cut : cuts_)
      row.push_back(std::inner_product(gradient.begin(), gradient.end(), cut.gradient.begin(), 0.0));
    for (std::size_t i = 0; i + 1 < cuts_.size(); ++i)
      gram_[i].push_back(row[i]);
    gram_.push_back(std::move(row));
  }
  void drop() {
    std::size_t worst = 0;
    for (std::size_t i = 1; i < cuts_.size(); ++i) {
      if (weight_[i] < weight_[worst] || (weight_[i] == weight_[worst] && cuts_[i].error > cuts_[worst].error)) worst = i;
    }
    const auto at = static_cast<std::ptrdiff_t>(worst);
    const double moved = weight_[worst];
    cuts_.erase(cuts_.begin() + at);
    weight_.erase(weight_.begin() + at);
    gram_.erase(gram_.begin() + at);
    for (auto& row : gram_)
      row.erase(row.begin() + at);
    weight_.back() += moved;
  }

  /// Weights of the tangents: smallest tau / 2 * |mean gradient|^2 + mean error, pair by pair.
  void weigh() {
    const std::size_t n = cuts_.size();
    std::vector<double> slope(n);
    for (std::size_t i = 0; i < n; ++i)
      slope[i] = cuts_[i].error + tau_ * std::inner_product(weight_.begin(), weight_.end(), gram_[i].begin(), 0.0);
    for (int step = 0; step < 400; ++step) {
      const auto low = static_cast<std::size_t>(std::min_element(slope.begin(), slope.end()) - slope.begin());
      std::size_t high = n;
      for (std::size_t i = 0; i < n; ++i) {
        if (weight_[i] > 0 && (high == n || slope[i] > slope[high])) high = i;
      }
      const double curve = tau_ * (gram_[low][low] - 2 * gram_[low][high] + gram_[high][high]);
      if (slope[high] - slope[low] <= 1e-9 * (1 + std::abs(slope[high]))) break;
      const double drop = slope[high] - slope[low];
      const double moved = drop < weight_[high] * curve ? drop / curve : weight_[high];
      weight_[low] += moved;
      weight_[high] -= moved;
      for (std::size_t i = 0; i < n; ++i)
        slope[i] += tau_ * moved * (gram_[i][low] - gram_[i][high]);
    }
  }

  Point best_, direction_;
  double value_, tau_, promised_ = 0;
  int failures_ = 0;
  std::vector<Cut> cuts_;
  std::vector<double> weight_;
  std::vector<std::vector<double>> gram_;  // of the gradients
};

}  // namespace autopar::detail
