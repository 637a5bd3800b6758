#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/enum_text.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/plan/buckets.hpp>
#include <autopar/plan/choices.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/kind.hpp>
#include <autopar/schedule/mesh.hpp>

namespace autopar {

/// Version 2 added the certificate, 3 ZeRO levels and recomputed segments, 4 copies of gradients and element types.
/// Version 5 added host memory, 6 bucket sizes and tensor shards.
inline constexpr int kPlanVersion = 6;

/// What bounds the step time or the choice of a plan.
enum class Binding : std::uint8_t { kCompute, kBandwidth, kBubble, kMemory };
template <>
inline constexpr auto kEnumTexts<Binding> = std::to_array<EnumText<Binding>>({{Binding::kCompute, "compute"},
                                                                              {Binding::kBandwidth, "bandwidth"},
                                                                              {Binding::kBubble, "bubble"},
                                                                              {Binding::kMemory, "memory"}});

/// One stage: a convex set of atoms. Each replica runs on one rank, or on one rank for each tensor shard. Under some
/// schedules a rank runs several stages.
struct StagePlan {
  std::vector<NodeId> atoms;      ///< of the model profile's graph, ascending
  std::vector<std::int32_t> ops;  ///< positions of their operators in the captured graph, ascending
  Mesh mesh;                      ///< the ranks that run it
  /// Segments of atoms whose forward is recomputed before their backward
  std::vector<std::vector<NodeId>> recomputed;
  std::vector<ParameterId> parameters;  ///< read by the stage, ascending
  Bytes parameter_bytes{};              ///< buffers included, all shards together
  std::int64_t parameter_elements = 0;  ///< of parameters proper; 0 = not known
  Seconds forward{};                    ///< predicted, one slice of a micro-batch
  Seconds backward{};
  Seconds communication{};  ///< predicted, one slice of a micro-batch, both ways
  Seconds reduction{};      ///< predicted gradient reduction, once a step
  Bytes peak_memory{};      ///< predicted, the worst rank of the stage
  Bytes host_memory{};      ///< predicted, of what is offloaded
  friend bool operator==(const StagePlan&, const StagePlan&) = default;
};

/// A plan that was considered and is not the best, and why.
struct RunnerUp {
  std::string summary;  ///< e.g. "2 stages x 1 replica, 4 micro-batches, 1f1b"
  std::string reason;   ///< e.g. "1.32 x slower: bubble 37 %"
  Seconds step{};
  friend bool operator==(const RunnerUp&, const RunnerUp&) = default;
};

/// Why plans with certain numbers of micro-batches cannot be faster.
enum class BoundKind : std::uint8_t {
  kWork,  ///< all ranks together must do this much, the optimizer's update included
  kPath,  ///< one micro-batch must pass this chain of atoms forward and backward
};
template <>
inline constexpr auto kEnumTexts<BoundKind> = std::to_array<EnumText<BoundKind>>({{BoundKind::kWork, "work"},
                                                                                  {BoundKind::kPath, "path"}});

/// No plan with `from` to `to` micro-batches has a predicted step below `seconds`.
struct BoundCase {
  BoundKind kind = BoundKind::kWork;
  int from = 1;
  int to = 0;  ///< 0 = any number from `from` on
  Seconds seconds{};
  friend bool operator==(const BoundCase&, const BoundCase&) = default;
};

/// How far a plan is from the best one, with evidence from which `check_plan` derives the bound again.
struct Certificate {
  /// No plan of this model for this world and batch is faster, whatever its stages, replicas, micro-batches and
  /// schedule. 0: no bound is known, as the cost model has no economy of scale.
  Seconds lower_bound{};
  double gap = 0;                ///< step / lower_bound - 1; 0 where there is no bound
  std::vector<BoundCase> cases;  ///< cover all numbers of micro-batches; the bound is the smallest of them
  /// What the search claims for the options that it was given. It is not derived again by `check_plan`.
  Seconds searched_bound{};
  bool searched_to_end = false;  ///< it claims that no other plan under these options is faster
  int tensor_parallel = 1;       ///< the bound holds for plans with at most so many tensor shards a replica
  friend bool operator==(const Certificate&, const Certificate&) = default;
};

/// Everything needed to run a model on a set of ranks. A value: it prints, saves as JSON and compares.
struct Plan {
  int version = kPlanVersion;
  std::uint64_t model = 0;  ///< ModelProfile::hash it was made for
  int world = 1;            ///< ranks it was made for; some may be idle
  std::int64_t batch = 0;   ///< samples of a step it was made for, all ranks together
  std::vector<StagePlan> stages;
  int microbatches = 1;
  ScheduleKind schedule = kDefaultSchedule;
  bool sequence_parallel = false;  ///< sequence parallelism: norms and residuals between regions are cut by tokens
  bool chunked_heads = false;      ///< class heads compute their logits in chunks
  bool layers_by_inputs = false;   ///< single row-parallel linear layers, including class heads with few classes
  int zero = 0;                    ///< ZeRO level, among the replicas of each stage
  Offload offload = Offload::kNone;
  BucketPolicy buckets{};                    ///< of gradient sums and of parameter shards
  Precision precision = Precision::kModule;  ///< Options::precision that it was made for
  std::vector<std::vector<ComputeAction>>
      orders;               ///< [rank] of kSynthesised, for `microbatches`; other schedules derive theirs
  std::string device;       ///< name of the device model the predictions come from
  Bytes device_memory{};    ///< what a rank may use: memory less margin
  Bytes host_memory{};      ///< what a rank may use of its host's memory, less margin; 0 = the devices are CPUs
  int gradient_copies = 1;  ///< copies of each gradient that a rank holds at the peak (Options::gradient_accumulation)
  double optimizer_state_factor = 0;
  Seconds step{};     ///< predicted step of the simulated schedule
  double bubble = 0;  ///< share of the step in which the average rank in use does not compute, [0, 1)
  Binding binding = Binding::kCompute;
  std::vector<std::string> operators;    ///< users' operators in the program, with versions: "mylib::scale_rows 1"
  std::vector<std::string> constraints;  ///< options that were set and that the plan meets, see `kept_options`
  std::vector<RunnerUp> runners_up;      ///< best first
  std::vector<std::string> notes;        ///< what a user should know, e.g. samples per batch statistic
  Certificate certificate;

  friend bool operator==(const Plan&, const Plan&) = default;
};

}  // namespace autopar
