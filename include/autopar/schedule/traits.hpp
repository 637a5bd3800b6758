#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <tuple>
#include <vector>

#include <autopar/core/enum_text.hpp>
#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/given_orders.hpp>
#include <autopar/schedule/gpipe.hpp>
#include <autopar/schedule/interleaved.hpp>
#include <autopar/schedule/kind.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/zb_h1.hpp>
#include <autopar/schedule/zb_v.hpp>

namespace autopar {

/// How many micro-batches a stage runs forward before its first backward. At no time are more of them in flight.
enum class InFlightLaw : std::uint8_t {
  kAllMicrobatches,  ///< every forward comes before every backward
  kStagesBehind,     ///< one for each stage from it to the last
  kCounted,          ///< no law: count it in the orders
};

/// The properties of a schedule. Code asks for properties and never which schedule it is.
struct ScheduleTraits {
  ScheduleKind kind{};
  std::string_view name;          ///< in options, plans and files
  StageLayout layout{};           ///< the layout of stages that it requires
  bool splits_backwards = false;  ///< backwards are split in two parts if the runtime supports it
  bool orders_in_plan = false;    ///< stored in the plan; otherwise orders follow from the pipeline
  InFlightLaw in_flight = InFlightLaw::kCounted;

  /// The largest number of chunks of micro-batches that the ranks of a position hold from forward to whole backward.
  /// An upper bound with fewer micro-batches than fill the pipeline, see `bubble`. Null if there is no closed form.
  int (*peak)(int position, int positions, int chunks, int microbatches) = nullptr;
  /// The bubble, in seconds for each position but one: what a step of equal stages takes beyond the work of one
  /// position. It holds for as many micro-batches as positions or more; in a V, for twice as many less one.
  /// @param pass    seconds of one micro-batch's forward and backward in all stages of a position
  /// @param weight  seconds of `pass` for gradients of parameters
  double (*bubble)(double pass, double weight, int chunks) = nullptr;
};

namespace detail {

/// A schedule's policy, which yields the orders, and its traits.
template <SchedulePolicy P>
struct ScheduleRow {
  using Policy = P;
  ScheduleTraits traits;
};

[[nodiscard]] constexpr double bubble_of_whole(double pass, double /*weight*/, int chunks) { return pass / chunks; }
/// The bubble if weight backwards fill the time until the backward of inputs has finished.
[[nodiscard]] constexpr double bubble_of_split(double pass, double weight, int chunks) {
  return std::max(0.0, pass - 2 * weight) / chunks;
}

/// The one table of schedules, by `ScheduleKind`. README.md has the sources of the formulas.
inline constexpr std::tuple kScheduleTable{
    ScheduleRow<GPipe>{{
        .kind = ScheduleKind::kGPipe,
        .name = "gpipe",
        .layout = StageLayout::kStraight,
        .in_flight = InFlightLaw::kAllMicrobatches,
        .peak = [](int s, int p, int, int m) { return GPipe{}.peak_activations(StageId(s), p, m); },
        .bubble = bubble_of_whole,
    }},
    ScheduleRow<OneFOneB>{{
        .kind = ScheduleKind::kOneFOneB,
        .name = "1f1b",
        .layout = StageLayout::kStraight,
        .in_flight = InFlightLaw::kStagesBehind,
        .peak = [](int s, int p, int, int m) { return OneFOneB{}.peak_activations(StageId(s), p, m); },
        .bubble = bubble_of_whole,
    }},
    ScheduleRow<Interleaved>{{
        .kind = ScheduleKind::kInterleaved,
        .name = "interleaved",
        .layout = StageLayout::kLooped,
        .peak = [](int d, int p, int v, int m) { return Interleaved::peak_activations(d, p, v, m); },
        .bubble = bubble_of_whole,
    }},
    ScheduleRow<ZbH1>{{
        .kind = ScheduleKind::kZbH1,
        .name = "zb-h1",
        .layout = StageLayout::kStraight,
        .splits_backwards = true,
        .peak = [](int s, int p, int, int m) { return ZbH1{}.peak_activations(StageId(s), p, m); },
        .bubble = bubble_of_split,
    }},
    ScheduleRow<ZbV>{{
        .kind = ScheduleKind::kZbV,
        .name = "zb-v",
        .layout = StageLayout::kVShaped,
        .splits_backwards = true,
        .peak = [](int d, int p, int, int m) { return ZbV::peak_activations(d, p, m); },
        .bubble = bubble_of_split,
    }},
    ScheduleRow<GivenOrders>{{
        .kind = ScheduleKind::kSynthesised,
        .name = "synth",
        .layout = StageLayout::kAnywhere,
        .splits_backwards = true,
        .orders_in_plan = true,
    }},
};

}  // namespace detail

/// By kind.
inline constexpr std::array kScheduleTraits =
    std::apply([](const auto&... rows) { return std::array{rows.traits...}; }, detail::kScheduleTable);
static_assert(std::ranges::equal(kScheduleTraits, kScheduleKinds, {}, &ScheduleTraits::kind), "a row a kind, in order");

/// @throws InvalidArgument if there is no such kind
[[nodiscard]] constexpr const ScheduleTraits& traits_of(ScheduleKind kind) {
  const auto row = static_cast<std::size_t>(kind);
  if (row >= kScheduleTraits.size()) throw InvalidArgument("schedule: no such kind");
  return kScheduleTraits[row];
}

/// The names in options and files. `to_string` and `enum_named` read them.
template <>
inline constexpr auto kEnumTexts<ScheduleKind> = std::apply(
    [](const auto&... rows) {
      return std::array{EnumText<ScheduleKind>{rows.traits.kind, rows.traits.name}...};
    },
    detail::kScheduleTable);

/// Whether the runtime need not split backwards.
[[nodiscard]] constexpr bool keeps_backwards_whole(ScheduleKind kind) { return !traits_of(kind).splits_backwards; }

/// Whether it needs several stages at each rank.
[[nodiscard]] constexpr bool wants_chunks(ScheduleKind kind) {
  const StageLayout layout = traits_of(kind).layout;
  return layout == StageLayout::kLooped || layout == StageLayout::kVShaped;
}

/// Whether `peak` gives a stage's activations without the orders of compute actions. Lower bounds support such
/// schedules, too.
[[nodiscard]] constexpr bool has_closed_form(ScheduleKind kind) {
  return traits_of(kind).in_flight != InFlightLaw::kCounted;
}

/// Whether all forwards come before all backwards, as required when results leave the call before backwards start.
[[nodiscard]] constexpr bool puts_forwards_first(ScheduleKind kind) {
  return traits_of(kind).in_flight == InFlightLaw::kAllMicrobatches;
}

/// The first schedule of the table with a property. @pre there is one
template <std::predicate<const ScheduleTraits&> Is>
[[nodiscard]] consteval ScheduleKind first_schedule(Is is) {
  return std::ranges::find_if(kScheduleTraits, is)->kind;
}
/// The schedule of calls whose results leave the call before backwards start.
inline constexpr ScheduleKind kForwardsFirst =
    first_schedule([](const auto& row) { return row.in_flight == InFlightLaw::kAllMicrobatches; });
/// The schedule whose orders a synthesiser makes and a plan states.
inline constexpr ScheduleKind kSynthesisedSchedule = first_schedule([](const auto& row) { return row.orders_in_plan; });

/// The schedules with a property.
template <std::predicate<ScheduleKind> Is>
[[nodiscard]] std::vector<ScheduleKind> schedules_where(Is is) {
  std::vector<ScheduleKind> kinds;
  std::ranges::copy_if(kScheduleKinds, std::back_inserter(kinds), is);
  return kinds;
}

}  // namespace autopar
