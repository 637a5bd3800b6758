#pragma once

#include <array>
#include <cstdint>

namespace autopar {

/// The schedules that options, plans and files name. `ScheduleTraits` has the properties of each.
enum class ScheduleKind : std::uint8_t { kGPipe, kOneFOneB, kInterleaved, kZbH1, kZbV, kSynthesised };

inline constexpr std::array kScheduleKinds{ScheduleKind::kGPipe, ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved,
                                           ScheduleKind::kZbH1,  ScheduleKind::kZbV,      ScheduleKind::kSynthesised};

/// The schedule of plans and stagings that do not name one; the first that a search tries.
inline constexpr ScheduleKind kDefaultSchedule = ScheduleKind::kOneFOneB;

}  // namespace autopar
