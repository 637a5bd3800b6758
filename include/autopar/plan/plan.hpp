#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/plan/buckets.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/kind.hpp>
#include <autopar/schedule/mesh.hpp>

namespace autopar {

/// 2: plans carry a certificate. 3: and ZeRO levels and segments that are recomputed. 4: and copies of gradients and
/// the element types. 5: and what is in host memory. 6: and how large buckets are, and
/// tensor shards.
inline constexpr int kPlanVersion = 6;

/// What is kept in the host's memory instead of the device's.
enum class Offload : std::uint8_t {
  kNone,
  kOptimizer,  ///< gradients, optimizer state and the parameters that the optimizer steps, which it does on the host
};

[[nodiscard]] inline std::string name_of(Offload offload) {
  return offload == Offload::kOptimizer ? "optimizer" : "none";
}

/// What bounds the step time or the choice of a plan.
enum class Binding : std::uint8_t { kCompute, kBandwidth, kBubble, kMemory };

/// One stage: a convex set of atoms, run by one rank per replica. Under some schedules a rank runs several.
struct StagePlan {
  std::vector<NodeId> atoms;      ///< of the model profile's graph, ascending
  std::vector<std::int32_t> ops;  ///< positions of their operators in the captured graph, ascending
  Mesh mesh;                      ///< the ranks that run it
  /// Segments of atoms that recompute their forward before their backward
  std::vector<std::vector<NodeId>> recomputed;
  std::vector<ParameterId> parameters;  ///< read by the stage, ascending
  Bytes parameter_bytes{};              ///< buffers included, all shards together
  std::int64_t parameter_elements = 0;  ///< of parameters proper; 0 = not known
  Seconds forward{};                    ///< predicted, one slice of a micro-batch
  Seconds backward{};
  Seconds communication{};  ///< predicted, one slice of a micro-batch, both ways
  Seconds reduction{};      ///< predicted gradient sum, once a step
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

/// Why plans with so many micro-batches cannot be faster.
enum class BoundKind : std::uint8_t {
  kWork,  ///< all ranks together must do this much, optimizer's update included
  kPath,  ///< one micro-batch must go down and back up this chain of atoms
};

/// No plan whose micro-batches number `from` to `to` has a predicted step below `seconds`.
struct BoundCase {
  BoundKind kind = BoundKind::kWork;
  int from = 1;
  int to = 0;  ///< 0 = any number from `from` on
  Seconds seconds{};
  friend bool operator==(const BoundCase&, const BoundCase&) = default;
};

/// How far a plan is from the best one, with the evidence from which `check_plan` derives it again.
struct Certificate {
  /// No plan of this model for this world and batch is below, whatever its stages, replicas, micro-batches and
  /// schedule; 0 = nothing is known (the cost model has no economy of scale).
  Seconds lower_bound{};
  double gap = 0;                ///< step / lower_bound - 1; 0 where there is no bound
  std::vector<BoundCase> cases;  ///< cover all numbers of micro-batches; the bound is the smallest of them
  /// What the search claims for the options that it was given. It is not derived again by `check_plan`.
  Seconds searched_bound{};
  bool searched_to_end = false;  ///< it claims that no other plan under these options is faster
  int tensor_parallel = 1;       ///< the bound is of plans of so many tensor shards a replica at most
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
  bool sequence_parallel = false;  ///< tensor shards cut by tokens what lies between the regions that they compute
  bool chunked_heads = false;      ///< class heads make their logits piece by piece
  bool layers_by_inputs = false;  ///< tensor shards cut single linear layers by inputs, heads of few classes among them
  int zero = 0;                   ///< ZeRO level, among the replicas of each stage
  Offload offload = Offload::kNone;
  BucketPolicy buckets{};            ///< in which gradients are summed and shards gathered
  std::string precision = "module";  ///< Options::precision that it was made for
  std::vector<std::vector<ComputeAction>>
      orders;               ///< [rank] of kSynthesised, for `microbatches`; other schedules know theirs
  std::string device;       ///< name of the device model the predictions come from
  Bytes device_memory{};    ///< what a stage may use: memory less margin
  Bytes host_memory{};      ///< what a rank may use of its host's, less margin; 0 = that is the device's own
  int gradient_copies = 1;  ///< of each gradient that a rank holds at the peak (Options::gradient_accumulation)
  double optimizer_state_factor = 0;
  Seconds step{};     ///< predicted step of the simulated schedule
  double bubble = 0;  ///< share of the step in which the average busy rank waits, [0, 1)
  Binding binding = Binding::kCompute;
  std::vector<std::string> operators;    ///< of users that the program has, with their versions: "mylib::scale_rows 1"
  std::vector<std::string> constraints;  ///< options that were set and that it keeps, see `kept_options`
  std::vector<RunnerUp> runners_up;      ///< best first
  std::vector<std::string> notes;        ///< what a user should know, e.g. samples per batch statistic
  Certificate certificate;

  friend bool operator==(const Plan&, const Plan&) = default;
};

}  // namespace autopar
