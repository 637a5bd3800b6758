#pragma once

#include <cstdint>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"

namespace autopar::algebra {

/// A value that every slice adds to, and that is complete when all ranks' sums are added.
struct GlobalSum {
  /// Contribution of a slice's value to the sum.
  enum class Weighing : std::uint8_t {
    kAddend,    ///< the value itself
    kWeighted,  ///< times n/N: the same on every slice, counted once
    kFirst      ///< value of the slice with the first sample of the batch; other slices add nothing
  };
  ValueId value;
  Weighing weighing = Weighing::kAddend;
};

/// Sums that a call of the graph completes over all ranks: results that are not batched, and inputs of the epilogue.
/// Each value once, ascending.
[[nodiscard]] std::vector<GlobalSum> global_sums(const OpGraph& graph, const BatchSemantics& plan);

}  // namespace autopar::algebra
