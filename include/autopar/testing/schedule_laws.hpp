#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/compute_checks.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/pipeline.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/validate.hpp>
#include <autopar/testing/describe.hpp>
#include <autopar/testing/law_broken.hpp>
#include <autopar/testing/pipelines.hpp>
#include <autopar/testing/spelled.hpp>

namespace autopar::testing {

struct ScheduleLawOptions {
  /// The layout that the policy must have an order for. It may refuse others with InvalidArgument.
  StageLayout layout = StageLayout::kStraight;
  std::uint64_t first_seed = 0;  ///< first of `inputs` consecutive seeds
  int inputs = 300;
  int max_ranks = 7;
  int max_microbatches = 9;
};

namespace detail {

/// Checks one policy on one pipeline.
template <SchedulePolicy P>
class ScheduleCheck {
 public:
  ScheduleCheck(const P& policy, std::uint64_t seed, const PipelineCase& example)
      : policy_(policy), seed_(seed), pipeline_(example.pipeline), layout_(example.layout) {}

  /// @param may_refuse  the policy need not have an order for this pipeline
  void run(bool may_refuse) {
    try {
      orders_ = orders();
    } catch (const InvalidArgument& error) {
      if (may_refuse) return;
      refuse("there is an order for every pipeline whose stages lie as the schedule wants them", error.what());
    } catch (const std::exception& error) {
      refuse("a pipeline that there is no order for is refused by InvalidArgument", error.what());
    }
    check_computes();
    if (orders() != orders_) refuse("equal pipelines get equal orders", given() + ", and then others");
    check_peaks();
    check_circle();
    check_programs();
  }

 private:
  using Orders = std::vector<std::vector<ComputeAction>>;  // of stages or of ranks, whichever the policy returns

  [[nodiscard]] Orders orders() const {
    if constexpr (RankOrderPolicy<P>) {
      return policy_.rank_orders(pipeline_, layout_.microbatches);
    } else {
      Orders out;
      for (int s = 0; s < stages(); ++s) out.push_back(policy_.order(StageId(s), stages(), layout_.microbatches));
      return out;
    }
  }

  void check_computes() const {
    try {
      if constexpr (RankOrderPolicy<P>) {
        autopar::detail::check_rank_orders(pipeline_, orders_, layout_.microbatches);
      } else {
        for (std::size_t s = 0; s < orders_.size(); ++s)
          autopar::detail::check_computes(orders_[s], s, layout_.microbatches);
      }
    } catch (const InvalidArgument& error) {
      refuse("every micro-batch is once forward and, later, once backward, in stages of its own",
             given() + ": " + error.what());
    }
  }

  void check_peaks() const {
    if constexpr (!RankOrderPolicy<P>) {
      for (int s = 0; s < stages(); ++s) {
        int held = 0, most = 0;
        for (const ComputeAction compute : orders_[static_cast<std::size_t>(s)]) {
          if (compute.kind == ActionKind::kForward) most = std::max(most, ++held);
          if (gives_weight_gradients(compute.kind)) --held;
        }
        const int said = policy_.peak_activations(StageId(s), stages(), layout_.microbatches);
        if (said == most) continue;
        refuse(
            "`peak_activations` is the most that is ever forward and not wholly backward",
            std::to_string(said) + " for stage " + std::to_string(s) + ", whose order holds " + std::to_string(most));
      }
    }
  }

  /// A forward needs those of all replicas of the previous stage, a backward those of the next stage.
  void check_circle() const {
    Pipeline row = in_a_row(pipeline_.stages);
    row.ranks = pipeline_.ranks;
    for (Channel& channel : row.channels) {
      if (channel.from.valid()) channel.kind = ChannelKind::kTotal;
    }
    try {
      (void)make_program(row, even_layout(row, layout_.microbatches), policy_);
    } catch (const CyclicOrders& error) {
      refuse("the orders do not wait for one another in a circle", given() + ": " + error.what());
    }
  }

  void check_programs() const {
    for (const Phase phase : {Phase::kStep, Phase::kForward, Phase::kBackward}) {
      std::string fault;
      try {
        const auto found = find_fault(pipeline_, layout_, phase, make_program(pipeline_, layout_, policy_, phase));
        if (found) fault = found->what;
      } catch (const InvalidArgument& error) {
        fault = error.what();
      }
      if (!fault.empty()) refuse("the validator accepts every program in these orders", given() + ": " + fault);
    }
  }

  [[nodiscard]] int stages() const { return static_cast<int>(pipeline_.stages.size()); }

  [[nodiscard]] std::string given() const {
    std::string out;
    for (std::size_t i = 0; i < orders_.size(); ++i) {
      out += (i > 0 ? "; " : "") + std::string(RankOrderPolicy<P> ? "rank " : "stage ") + std::to_string(i) + ": " +
             spelled(orders_[i]);
    }
    return out;
  }

  [[noreturn]] void refuse(const char* law, const std::string& text) const {
    throw LawBroken(law, seed_, described(pipeline_, layout_.microbatches), text);
  }

  const P& policy_;
  std::uint64_t seed_;
  const Pipeline& pipeline_;
  const BatchLayout& layout_;
  Orders orders_;
};

}  // namespace detail

/// Checks the laws of `SchedulePolicy` on random pipelines with replicas, skip channels, idle ranks and empty slices.
/// Policies that order ranks also get layouts that they do not require.
/// @throws LawBroken with the first law that is broken
/// @cost under a millisecond for each input
template <SchedulePolicy P>
void check_schedule_laws(const P& policy, const ScheduleLawOptions& options = {}) {
  const auto check = [&](StageLayout layout, std::uint64_t seed, bool may_refuse) {
    const PipelineCase example = layout == StageLayout::kAnywhere
                                     ? random_chunked_case(seed, options.max_ranks, options.max_microbatches)
                                     : random_placed_case(seed, layout, options.max_ranks, options.max_microbatches);
    detail::ScheduleCheck<P>(policy, seed, example).run(may_refuse);
  };
  for (int i = 0; i < options.inputs; ++i) {
    const std::uint64_t seed = options.first_seed + static_cast<std::uint64_t>(i);
    check(options.layout, seed, false);
    if constexpr (RankOrderPolicy<P>) {
      using enum StageLayout;
      for (const StageLayout other : {kStraight, kLooped, kVShaped, kAnywhere}) {
        if (other != options.layout) check(other, seed, options.layout != kAnywhere);
      }
    }
  }
}

}  // namespace autopar::testing
