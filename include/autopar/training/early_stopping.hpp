#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <autopar/training/better.hpp>

namespace autopar::training {

/// Says when a metric has not become better for some time. `model->keep("patience", stopping)` saves it with the model.
class EarlyStopping {
 public:
  /// @param patience  validations in a row that bring nothing better, after which the training is over
  /// @param least     by how much a value must be better to count, not negative
  /// @throws InvalidArgument if `patience` is not positive or `least` is negative
  explicit EarlyStopping(std::int64_t patience, Better better = Better::kHigher, double least = 0);

  /// A value of the metric, equal on all ranks. @return is_over()
  bool see(double value);
  [[nodiscard]] bool is_over() const { return without_better_ >= patience_; }
  [[nodiscard]] std::optional<double> best() const { return best_; }

  // For `model->keep`.
  [[nodiscard]] std::string save() const;
  /// @throws InvalidArgument if `save` did not write the text
  void load(const std::string& text);

 private:
  std::int64_t patience_;
  Better better_;
  double least_;
  std::optional<double> best_{};
  std::int64_t without_better_ = 0;
};

}  // namespace autopar::training
