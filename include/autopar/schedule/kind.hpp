#pragma once

#include <array>
#include <cstdint>

namespace autopar {

/// The schedules that options, plans and files name. What is true of each says `ScheduleTraits`.
enum class ScheduleKind : std::uint8_t { kGPipe, kOneFOneB, kInterleaved, kZbH1, kZbV, kSynthesised };

inline constexpr std::array kScheduleKinds{ScheduleKind::kGPipe, ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved,
                                           ScheduleKind::kZbH1,  ScheduleKind::kZbV,      ScheduleKind::kSynthesised};

/// Of plans and stagings that say nothing else; the first that is tried.
inline constexpr ScheduleKind kDefaultSchedule = ScheduleKind::kOneFOneB;

}  // namespace autopar
