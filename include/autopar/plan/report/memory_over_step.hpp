#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <autopar/core/enum_text.hpp>
#include <autopar/plan/report/step_timeline.hpp>

namespace autopar {

/// What a device holds memory for.
enum class MemoryKind : std::uint8_t { kParameters, kGradients, kOptimizer, kActivations, kMessages, kTemporaries };
template <>
inline constexpr auto kEnumTexts<MemoryKind> =
    std::to_array<EnumText<MemoryKind>>({{MemoryKind::kParameters, "parameters"},
                                         {MemoryKind::kGradients, "gradients"},
                                         {MemoryKind::kOptimizer, "optimizer state"},
                                         {MemoryKind::kActivations, "activations"},
                                         {MemoryKind::kMessages, "values between stages"},
                                         {MemoryKind::kTemporaries, "temporaries"}});
inline constexpr std::size_t kMemoryKinds = kEnumTexts<MemoryKind>.size();

/// Bytes by kind from a moment on.
struct MemorySample {
  Seconds from{};
  std::array<Bytes, kMemoryKinds> held{};  ///< by MemoryKind

  [[nodiscard]] Bytes total() const {
    Bytes sum{};
    for (const Bytes bytes : held) sum += bytes;
    return sum;
  }
};

/// The predicted memory of one rank over a step.
struct RankMemoryOverStep {
  Rank rank;
  std::vector<MemorySample> samples;  ///< ascending; the last holds until the step ends
  Bytes peak{};                       ///< as the plan states it: at least the largest sample, but for rounding

  [[nodiscard]] Bytes most() const {
    Bytes out{};
    for (const MemorySample& sample : samples) out = std::max(out, sample.total());
    return out;
  }
};

/// One rank of each group of ranks that run the same stages, those with the highest peak first. What a stage holds is
/// that of its replica with the largest slices.
/// @param timeline  of the same plan
/// @pre as `timeline_of`
/// @cost O(actions of these ranks), and the memory terms of one staging
[[nodiscard]] std::vector<RankMemoryOverStep> memory_over_step(const Plan& plan, const ModelProfile& profile,
                                                               const ProfiledCost& costs, const StepTimeline& timeline);

}  // namespace autopar
