#pragma once

#include <cstdint>

/// What keeps a rank from replaying a step, as bits. Ranks combine theirs before each call, so that all replay it or
/// none does.
namespace autopar::graphs::obstacle {

using Bits = std::uint8_t;

inline constexpr Bits kOwnSteps = 1;         ///< gradients wait to be summed, or steps are not recorded at all
inline constexpr Bits kGradients = 2;        ///< some `.grad` is defined, to which a single loss's would be added
inline constexpr Bits kOtherConditions = 4;  ///< see StepConditions
inline constexpr Bits kMemoryHeld = 8;       ///< the user holds what the last replay has made
inline constexpr Bits kNoBackward = 16;      ///< nobody asked for the backward of the recorded forward
inline constexpr Bits kLittleMemory = 32;    ///< a step may not fit beside the recording
inline constexpr Bits kOtherRequest = 64;    ///< a backward asks for something else than the recorded one

}  // namespace autopar::graphs::obstacle
