#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/buckets.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/recompute.hpp>
#include <autopar/plan/search_budget.hpp>
#include <autopar/schedule/kind.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// What the runtime that will run a plan can do. The defaults are the least that any runtime can do; plans for them are
/// searched exactly.
struct Capabilities {
  std::vector<ScheduleKind> schedules = schedules_where(has_closed_form);
  int max_tensor_parallel = 1;  ///< shards of a replica that compute a profile's `tensor_regions` together
  int max_zero = 0;
  bool recompute = false;
  bool offload = false;
  bool precision = false;  ///< other element types than the module's: tf32, bf16, fp16; gradients sent in bf16
  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

/// What autopar's own runtime can do. Plans that it runs use no more.
[[nodiscard]] inline Capabilities runtime_capabilities() {
  return {.schedules = {kScheduleKinds.begin(), kScheduleKinds.end()},
          .max_tensor_parallel = std::numeric_limits<int>::max(),
          .max_zero = 3,
          .recompute = true,
          .offload = true,
          .precision = true};
}

/// Another program that trains the request's model, such as one whose class head makes its logits in chunks. A planner
/// searches the variants of a request after its own program, in their order, and answers with the fastest plan.
///
///   request.variants.push_back({.profile = chunked, .costs = measured, .is_worth = [](const Plan* best) { … }});
struct ProgramVariant {
  ModelProfile profile;
  ProfiledCost costs;
  /// Whether a search may pay, given the best plan so far (null: none fits). Empty: it always may.
  std::function<bool(const Plan* best)> is_worth{};
  /// Note of a plan of this variant. @param other  step of the best plan of the earlier programs, if one fits
  std::function<std::string(std::optional<Seconds> other)> chosen_note{};
  /// Note of another program's better plan. @param own  step of this variant's plan
  std::function<std::string(Seconds own)> passed_note{};
};

/// Steps predicted from measured costs are within about this part of what runs (benchmarks/README.md).
inline constexpr double kMeasuredTies = 0.02;

/// What to plan for, besides the model and the cluster.
struct PlanRequest {
  Options options{};       ///< constraints; its files, devices and logging are ignored
  int world = 0;           ///< ranks; 0 = all devices of the cluster
  std::int64_t batch = 1;  ///< samples of a step, all ranks together
  Capabilities runtime{};
  SearchBudget budget{};
  /// Predicted steps that are longer than the best by at most this part count as equal: of the ZeRO levels of the best
  /// staging, the level that exchanges least is chosen. What predictions from measured costs are worth is
  /// `kMeasuredTies`.
  double ties = 0;
  std::optional<BucketPolicy> buckets{};   ///< only `size` counts; none: see `chosen_bucket_size`
  bool remedies = true;                    ///< an Infeasible answer looks for changes that fit, which may take seconds
  std::vector<ProgramVariant> variants{};  ///< of captured models
  /// Whether a plan's replicas give some operator too few samples. If so, a plan without replicas is preferred, if one
  /// fits.
  std::function<bool(const Plan&)> starves{};
};

/// A checked request: what a search may choose from. Values only.
struct Constraints {
  int world = 1;                       ///< ranks, or groups of `tensor` ranks that a search treats as one rank each
  int tensor = 1;                      ///< shards of each replica, for stages that do not state their own number
  std::vector<int> tensor_degrees{1};  ///< candidates for `tensor`, ascending
  int searches = 1;                    ///< number of searches, one for each tensor degree; they share one budget
  std::int64_t batch = 1;
  int stages = 0;                                 ///< 0 = any number
  std::vector<int> replicas;                      ///< of each stage; empty = any
  int replicas_of_each = 0;                       ///< the same number for every stage; 0 = any
  std::vector<int> microbatches;                  ///< candidates, ascending
  std::vector<ScheduleKind> schedules;            ///< candidates
  std::vector<bool> sequences{false};             ///< candidates for `MemoryOptimizations::sequence`
  std::vector<int> zero_levels{0};                ///< candidates, ascending
  std::vector<Offload> offloads{Offload::kNone};  ///< candidates; the one that leaves least on the device comes last
  Recompute recompute = Recompute::kNever;
  std::vector<std::string> recomputed_modules;  ///< with kAlways: one segment each, and no others; empty = everything
  Bytes memory{};                               ///< what one rank may use, margin taken off
  std::optional<Bytes> host_memory{};  ///< likewise of its host; none: what is offloaded stays in the same memory
  double optimizer_state_factor = 2;
  int gradient_copies = 1;  ///< of each gradient that a rank holds at the peak
  BucketPolicy buckets{};
  SearchBudget budget{};
  /// A search may skip stagings that are not faster than this.
  Seconds to_beat{std::numeric_limits<double>::infinity()};
  std::vector<std::string> notes;  ///< what the plan should tell the user

  [[nodiscard]] bool allows(ScheduleKind kind) const {
    return std::find(schedules.begin(), schedules.end(), kind) != schedules.end();
  }
  [[nodiscard]] bool replicas_are_fixed() const { return replicas_of_each > 0 || !replicas.empty(); }
  /// The replicas of `count` stages; empty = any.
  [[nodiscard]] std::vector<int> fixed_replicas(int count) const {
    return replicas_of_each > 0 ? std::vector<int>(static_cast<std::size_t>(count), replicas_of_each) : replicas;
  }

  [[nodiscard]] int ranks() const { return world * tensor; }
  /// One tensor degree for every stage: what counts as a rank is then a group of `degree` ranks.
  [[nodiscard]] Constraints at_degree(int degree) const {
    Constraints out = *this;
    out.world /= degree;
    out.tensor = degree;
    out.searches = static_cast<int>(tensor_degrees.size());
    out.tensor_degrees = {degree};
    return out;
  }
  /// Tensor shards of `count` stages that do not state their own number; empty = one each.
  [[nodiscard]] std::vector<int> tensor_of_each(std::size_t count) const {
    return tensor == 1 ? std::vector<int>{} : std::vector<int>(count, tensor);
  }

  /// Samples of each rank, as even as possible; the first ranks have no more than the last.
  [[nodiscard]] std::vector<std::int64_t> local_batches() const {
    std::vector<std::int64_t> local;
    for (std::int64_t r = 0; r < ranks(); ++r) local.push_back(batch * (r + 1) / ranks() - batch * r / ranks());
    return local;
  }
  [[nodiscard]] std::int64_t largest_local_batch() const { return (batch + ranks() - 1) / ranks(); }
};

}  // namespace autopar
