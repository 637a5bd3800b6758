#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar {

class RecordedSeeds;

/// What the random draws of one call have in common: the same on every rank.
struct DrawKey {
  std::uint64_t seed = 0;
  std::uint64_t call = 0;
  std::shared_ptr<RecordedSeeds> recorded{};  ///< of a step that is recorded; else null
};

/// The samples that an operator sees, and how they lie in the whole batch.
struct SliceContext {
  std::int64_t samples = 0;       ///< n, of this slice; at least 1
  std::int64_t batch = 0;         ///< N, of the call, over all ranks
  std::int64_t first_sample = 0;  ///< position of its first sample in the global batch
  DrawKey draws;
  const std::vector<at::Tensor>* counts = nullptr;  ///< by BatchPlan::counts: 0-dim f64, over the whole batch

  /// n / N: what a mean over the slice, or a term that counts once, contributes.
  [[nodiscard]] double weight() const { return static_cast<double>(samples) / static_cast<double>(batch); }
};

}  // namespace autopar
