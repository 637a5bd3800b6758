#pragma once

#include <chrono>
#include <string>
#include <utility>

#include <autopar/core/units.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/training/time_spent.hpp>

namespace autopar::training {

/// Measures where the time of a run goes on this rank, and adds up the ranks. Run does so by itself.
class Goodput {
 public:
  /// @param before  what earlier starts spent; default: this is the first
  Goodput(World& world, const TimeSpent& before);

  /// While it lives, the time counts as saving. Not collective.
  class Saving {
   public:
    explicit Saving(Goodput& goodput) : goodput_(goodput), begin_(goodput.moment()) {}
    ~Saving() { goodput_.add_saving(begin_); }
    Saving(const Saving&) = delete;
    Saving& operator=(const Saving&) = delete;

   private:
    friend class Goodput;
    Goodput& goodput_;
    struct Moment {
      std::chrono::steady_clock::time_point time;
      double waited = 0;
    } begin_;
  };

  /// After each step. What ranks waited for one another in the first one was for the plan. Not collective.
  void end_step() {
    if (!std::exchange(has_steps_, true)) not_counted_ = world_.waited().value();
  }
  /// Whether this start has made any.
  [[nodiscard]] bool has_steps() const { return has_steps_; }

  /// What was spent up to now, the same on all ranks. Collective; a few numbers of each rank.
  /// @param planning, preparing  of `model->stats()`
  [[nodiscard]] TimeSpent spent(Seconds planning, Seconds preparing);
  /// What it says to people, with the rank that waited least: "…, waiting 2.0 % for rank 2 on node7".
  /// @param spent  what `spent` gave last
  [[nodiscard]] std::string text_of(const TimeSpent& spent) const;
  /// What it says to files: shares, and "slowest_rank". @param spent  as above
  [[nodiscard]] Values figures_of(const TimeSpent& spent) const;

 private:
  [[nodiscard]] Saving::Moment moment() const;
  void add_saving(const Saving::Moment& begin);

  World& world_;
  TimeSpent before_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double saving_ = 0;       ///< s
  double not_counted_ = 0;  ///< of World::waited
  int slowest_rank_ = 0;
  std::string slowest_host_{};
  bool has_steps_ = false;
};

}  // namespace autopar::training
