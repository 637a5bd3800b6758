#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace autopar {

/// The schedules that options, plans and files name.
enum class ScheduleKind : std::uint8_t { kGPipe, kOneFOneB, kInterleaved, kZbH1, kZbV, kSynthesised };

inline constexpr std::array kScheduleKinds{ScheduleKind::kGPipe, ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved,
                                           ScheduleKind::kZbH1,  ScheduleKind::kZbV,      ScheduleKind::kSynthesised};

/// As options and files spell it.
[[nodiscard]] constexpr std::string_view to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kGPipe:
      return "gpipe";
    case ScheduleKind::kOneFOneB:
      return "1f1b";
    case ScheduleKind::kInterleaved:
      return "interleaved";
    case ScheduleKind::kZbH1:
      return "zb-h1";
    case ScheduleKind::kZbV:
      return "zb-v";
    case ScheduleKind::kSynthesised:
      return "synth";
  }
  return "unknown";
}

/// Nothing if there is no schedule of this name.
[[nodiscard]] constexpr std::optional<ScheduleKind> schedule_named(std::string_view name) {
  for (const ScheduleKind kind : kScheduleKinds) {
    if (to_string(kind) == name) return kind;
  }
  return std::nullopt;
}

/// Whether all backwards are whole, so that a runtime need not part them.
[[nodiscard]] constexpr bool keeps_backwards_whole(ScheduleKind kind) {
  return kind == ScheduleKind::kGPipe || kind == ScheduleKind::kOneFOneB || kind == ScheduleKind::kInterleaved;
}

/// Whether it is made for several stages a rank.
[[nodiscard]] constexpr bool wants_chunks(ScheduleKind kind) {
  return kind == ScheduleKind::kInterleaved || kind == ScheduleKind::kZbV;
}

}  // namespace autopar
