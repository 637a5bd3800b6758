#include <autopar/plan/report/memory_over_step.hpp>

#include <algorithm>
#include <map>
#include <utility>

#include <autopar/plan/memory/memory.hpp>

#include "planner/placed_plan.hpp"

namespace autopar {

namespace {

constexpr Bytes& of(MemorySample& sample, MemoryKind kind) { return sample.held[static_cast<std::size_t>(kind)]; }

/// The terms of each stage: what it always holds, and what each micro-batch in flight adds.
class StageBytes {
 public:
  explicit StageBytes(const PlacedPlan& placed) : slices_(placed.constraints) {
    const auto& optimizations = placed.optimizations;
    const SizedStages stages = sized_stages(placed.work, placed.staging, placed.sized, slices_);
    const auto fixed =
        fixed_memory(placed.work, placed.constraints, placed.staging, optimizations.zero, optimizations.offload);
    std::vector<InFlight> in_flight(fixed.size());
    none_ = predict_memory(stages, in_flight, optimizations, fixed);
    for (std::size_t s = 0; s < in_flight.size(); ++s) in_flight[s].whole = stages.samples[s].largest();
    whole_ = predict_memory(stages, in_flight, optimizations, fixed);
    held_ = held_by_microbatch(stages, optimizations, fixed);
  }

  /// Adds what a stage holds with so many micro-batches in flight.
  void add(MemorySample& sample, std::size_t s, const InFlight& now) const {
    const StageMemory& none = none_[s];
    of(sample, MemoryKind::kParameters) += none.parameters;
    of(sample, MemoryKind::kGradients) += none.gradients - (none.first_made - held_.made(s, now.gradients));
    of(sample, MemoryKind::kOptimizer) += none.optimizer;
    const MicrobatchSamples& samples = held_.samples[s];
    const Bytes saved = whole_[s].saved, read = held_.read[s], made = held_.whole[s] - saved;
    of(sample, MemoryKind::kActivations) +=
        samples.held(saved, now.whole) + samples.held(held_.waiting[s], now.waiting);
    // A value that arrives is held for micro-batches in flight and for the next; one that is made, for those in flight.
    if (now.whole == 0 && now.waiting == 0) return;
    of(sample, MemoryKind::kMessages) +=
        none.boundary - read + samples.held(made, now.whole) + samples.held(read, samples.arrived(now));
  }
  /// Of a stage's compute action. Gradients that come while activations go may be less than nothing.
  void add_transient(MemorySample& sample, std::size_t s) const { add_temporaries(sample, none_[s].transient()); }
  /// Whether a compute action makes parameter gradients of its stage.
  [[nodiscard]] bool makes_gradients(std::size_t s, BarKind kind) const {
    return kind == BarKind::kBackwardInput ? !held_.defers[s] : kind != BarKind::kForward;
  }
  /// What a micro-batch of a stage counts.
  [[nodiscard]] std::int64_t samples(std::size_t s, int microbatch) const { return held_.samples[s].of(microbatch); }
  void add_update(MemorySample& sample, std::size_t s) const { add_temporaries(sample, none_[s].update); }

 private:
  static void add_temporaries(MemorySample& sample, Bytes bytes) {
    if (bytes >= Bytes(0))
      of(sample, MemoryKind::kTemporaries) += bytes;
    else
      of(sample, MemoryKind::kActivations) = std::max(Bytes(0), of(sample, MemoryKind::kActivations) + bytes);
  }

  SliceTable slices_;
  std::vector<StageMemory> none_, whole_;  // with no micro-batch in flight, and with one
  HeldByMicrobatch held_;
};

/// What a rank holds, bar by bar.
class MemoryOfRank {
 public:
  MemoryOfRank(const StageBytes& bytes, const std::vector<int>& stages, std::size_t all)
      : bytes_(bytes), stages_(stages), in_flight_(all, InFlight{.gradients = FirstGradients::kNone}) {}

  void idle(Seconds from) { push(held(from)); }

  void compute(const Bar& bar) {
    const std::size_t s = bar.stage.index();
    InFlight& now = in_flight_[s];
    const std::int64_t own = bar.microbatch < 0 ? 0 : bytes_.samples(s, bar.microbatch);
    if (bar.kind == BarKind::kForward) now.whole += own;
    const bool makes = bytes_.makes_gradients(s, bar.kind);
    if (makes && now.gradients == FirstGradients::kNone) now.gradients = FirstGradients::kComing;
    MemorySample during = held(bar.begin);
    if (bar.kind == BarKind::kUpdate)
      bytes_.add_update(during, s);
    else
      bytes_.add_transient(during, s);
    push(during);
    if (makes) now.gradients = FirstGradients::kMade;
    if (bar.kind == BarKind::kBackward || bar.kind == BarKind::kBackwardInput) now.whole -= own;
    if (bar.kind == BarKind::kBackwardInput) now.waiting += own;
    if (bar.kind == BarKind::kBackwardWeight) now.waiting -= own;
    push(held(bar.end));
  }

  [[nodiscard]] std::vector<MemorySample> samples() && { return std::move(samples_); }

 private:
  [[nodiscard]] MemorySample held(Seconds from) const {
    MemorySample sample{from, {}};
    for (const int stage : stages_) {
      const auto s = static_cast<std::size_t>(stage);
      bytes_.add(sample, s, in_flight_[s]);
    }
    return sample;
  }
  void push(const MemorySample& sample) {
    if (!samples_.empty() && samples_.back().held == sample.held) return;
    if (!samples_.empty() && samples_.back().from == sample.from)
      samples_.back() = sample;
    else
      samples_.push_back(sample);
  }

  const StageBytes& bytes_;
  const std::vector<int>& stages_;
  std::vector<InFlight> in_flight_;  // by stage
  std::vector<MemorySample> samples_;
};

}  // namespace

std::vector<RankMemoryOverStep> memory_over_step(const Plan& plan, const ModelProfile& profile,
                                                 const ProfiledCost& costs, const StepTimeline& timeline) {
  const PlacedPlan placed(plan, profile, costs);
  const StageBytes bytes(placed);
  std::map<std::vector<int>, Rank> first_of;
  for (std::size_t r = timeline.stages.size(); r-- > 0;) {
    if (!timeline.stages[r].empty()) first_of[timeline.stages[r]] = Rank::of(r);
  }
  std::vector<RankMemoryOverStep> out;
  for (const auto& [stages, rank] : first_of) {
    RankMemoryOverStep memory{rank, {}, {}};
    for (const int stage : stages) memory.peak += plan.stages[static_cast<std::size_t>(stage)].peak_memory;
    MemoryOfRank of_rank(bytes, stages, plan.stages.size());
    of_rank.idle(Seconds{});
    for (const Bar& bar : timeline.bars) {
      if (bar.rank == rank && computes(bar.kind)) of_rank.compute(bar);
    }
    memory.samples = std::move(of_rank).samples();
    out.push_back(std::move(memory));
  }
  std::ranges::stable_sort(out, std::ranges::greater{}, &RankMemoryOverStep::peak);
  return out;
}

}  // namespace autopar
