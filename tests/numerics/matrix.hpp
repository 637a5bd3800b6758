#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fidelity.hpp"

namespace numerics {

/// A model of the matrix, without its type.
struct MatrixModel {
  std::string name;
  int max_stages = 4;       ///< it has so many parts that may be separated
  bool loss_inside = true;  ///< forwards and backwards may alternate
  bool one_microbatch = false;  ///< statistics of the whole batch
  /// Runs one process, then returns what every rank does (called by all ranks at once).
  std::function<std::function<void(autopar::World&)>(const Setup&, uint64_t seed)> prepare;
};

const std::vector<MatrixModel>& matrix_models();

/// The plans, layouts and training options that are combined with every model.
struct MatrixFactors {
  static constexpr int kFactors = 9;
  /// Levels of: model, ranks and replicas, micro-batches, schedule, layout of samples, optimizer, accumulation, clipping,
  /// ZeRO.
  static std::vector<int> levels();
  /// Ranks that a row needs.
  static int ranks(const std::vector<int>& row);
  /// The setup of a row, or nothing if the model does not allow it.
  static std::optional<Setup> setup(const std::vector<int>& row);
  static std::string describe(const std::vector<int>& row);
};

/// The schedules with several stages a rank or with backwards in two parts, likewise.
struct ChunkedFactors {
  /// Levels of: model, schedule, positions and replicas, micro-batches, layout of samples, optimizer, accumulation,
  /// clipping, ZeRO.
  static std::vector<int> levels();
  static int ranks(const std::vector<int>& row);
  static std::optional<Setup> setup(const std::vector<int>& row);
  static std::string describe(const std::vector<int>& row);
};

}  // namespace numerics
