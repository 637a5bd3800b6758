#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fidelity.hpp"

namespace numerics {

/// A model of the matrix, without its type.
struct MatrixModel {
  std::string name;
  int max_stages = 4;           ///< it has so many parts that may be separated
  bool loss_inside = true;      ///< forwards and backwards may alternate
  bool one_microbatch = false;  ///< statistics of the whole batch
  bool one_replica = false;     ///< its operators mix samples
  bool has_head = false;        ///< a linear layer whose result a cross entropy alone reads
  bool ties = false;  ///< several of its parts read one parameter, so tensor shards may run it in one stage only
  /// Runs one process, then returns what every rank does (called by all ranks at once).
  std::function<std::function<void(autopar::World&)>(const Setup&, uint64_t seed)> prepare;
};

const std::vector<MatrixModel>& matrix_models();

/// The plans, layouts and training options that are combined with every model.
struct MatrixFactors {
  enum Factor : std::uint8_t {
    kModel,
    kSchedule,
    kPositions,
    kReplicas,
    kMicrobatches,
    kLayout,
    kOptimizer,
    kAccumulate,
    kClip,
    kZero,
    kRecompute,
    kPrecision,
    kTensor,
    kClassHead,
    kFusion,
    kReduceDtype,
    kFactors
  };
  static std::vector<int> levels();
  /// Whether two levels of two factors can occur together, see PossiblePair.
  static bool possible(std::size_t f, int a, std::size_t g, int b);
  /// Rows of which each has a possible combination.
  static std::vector<std::vector<int>> pairwise();
  /// Calls `visit` with every combination of what a plan and a training loop may choose: schedule, replicas, layout of
  /// samples, accumulation, clipping, ZeRO, recompute, precision. Models, positions, micro-batches, optimizers, heads,
  /// fusion, element types of sums take turns.
  static void for_each_choice(const std::function<void(const std::vector<int>& row)>& visit);

  /// Ranks that a row needs.
  static int ranks(const std::vector<int>& row);
  static Setup setup(const std::vector<int>& row);
  static std::string describe(const std::vector<int>& row);
};

}  // namespace numerics
