#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar::replay {
class OpObserver;
}

namespace autopar::interpret {

class RecordedSeeds;

/// The part of the RNG key that all random draws of one call share. It is the same on every rank.
struct RngKey {
  std::uint64_t seed = 0;
  std::uint64_t call = 0;
  std::shared_ptr<RecordedSeeds> recorded{};  ///< the seeds of a step that is being recorded; otherwise null
};

/// The samples on which an operator runs, and their position in the global batch.
struct SliceContext {
  std::int64_t samples = 0;       ///< n, the samples of this slice; at least 1
  std::int64_t batch = 0;         ///< N, the samples of the call, over all ranks
  std::int64_t first_sample = 0;  ///< position of its first sample in the global batch
  RngKey draws;
  const std::vector<at::Tensor>* counts = nullptr;  ///< by BatchSemantics::counts: 0-dim f64, over the whole batch
  replay::OpObserver* observer = nullptr;           ///< sees the operators, also when they run again; null: nobody does

  /// n / N: the weight of a mean over the slice, or of a term that counts once.
  [[nodiscard]] double weight() const { return static_cast<double>(samples) / static_cast<double>(batch); }
};

}  // namespace autopar::interpret
