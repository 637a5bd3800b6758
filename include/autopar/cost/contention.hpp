#pragma once

#include <algorithm>
#include <concepts>
#include <span>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>

namespace autopar {

/// What computation and an exchange cost each other while both run on a device. They share its memory and its power.
/// Both run at constant rates, so that each second of one, as it takes alone, delays the other by a constant part.
struct Contention {
  double of_computing = 0;  ///< seconds by which computation takes longer, for each second of exchange; 0 to 1
  double of_exchange = 0;   ///< seconds by which the exchange takes longer, for each second of computation; 0 to 1

  /// Seconds until both are complete if they start together.
  [[nodiscard]] Seconds together(Seconds computing, Seconds exchange) const {
    return std::max(computing + of_computing * exchange, exchange + of_exchange * computing);
  }
  /// The part of its own speed that the exchange has while both run.
  [[nodiscard]] double exchange_rate() const { return rate(of_exchange, of_computing); }
  /// Likewise of the computation.
  [[nodiscard]] double computing_rate() const { return rate(of_computing, of_exchange); }
  friend bool operator==(const Contention&, const Contention&) = default;

 private:
  /// In a second, one does its rate; the other's rate, times the delay that it causes, is missing.
  [[nodiscard]] static double rate(double own, double others) {
    return own * others < 1 ? (1 - own) / (1 - own * others) : 0.5;
  }
};

/// Neither notices the other.
inline constexpr Contention kNoContention{0, 0};
/// One waits for the other: on CPUs the same processors do both.
inline constexpr Contention kOneAfterTheOther{1, 1};

/// With gradient sums at the end of a call. On CPUs they run on other threads than the last backward, and no delay of
/// either was measured.
[[nodiscard]] inline Contention with_last_sums(const Contention& within_actions) {
  return within_actions == kOneAfterTheOther ? kNoContention : within_actions;
}

/// A cost model that knows how much computation and an exchange among some ranks delay each other.
template <class M>
concept CostsContention = requires(const M& model, std::span<const Rank> ranks) {
  { model.contention(ranks) } -> std::same_as<Contention>;
};

/// A cost model that bounds the contention of any `replicas` ranks from below. Prunes the search.
template <class M>
concept BoundsContention = requires(const M& model, int replicas) {
  { model.least_contention(replicas) } -> std::same_as<Contention>;
};

/// A cost model that knows by how much a message delays the computation of both its ranks: seconds for each second of
/// the message, 0 to 1.
template <class M>
concept DelaysByMessages = requires(const M& model) {
  { model.message_delay() } -> std::same_as<double>;
};

/// Of a model that says nothing about it, none.
template <class M>
[[nodiscard]] Contention contention_of(const M& model, std::span<const Rank> ranks) {
  if constexpr (CostsContention<M>) return model.contention(ranks);
  return kNoContention;
}

}  // namespace autopar
