#pragma once

#include <cstdint>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"

namespace autopar {

/// A value that every slice adds to, and that is complete when all ranks' sums are added.
struct GlobalSum {
  /// How a slice's value enters the sum.
  enum class Weighing : std::uint8_t {
    kAddend,    ///< as it is
    kWeighted,  ///< times n/N: the same on every slice, counted once
    kFirst      ///< that of the slice with the first sample of the batch; the others add nothing
  };
  ValueId value;
  Weighing weighing = Weighing::kAddend;
};

/// Sums that a call of the graph completes over all ranks: results that are not batched, and inputs of the epilogue.
/// Each value once, ascending.
[[nodiscard]] std::vector<GlobalSum> global_sums(const OpGraph& graph, const BatchPlan& plan);

}  // namespace autopar
