#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <autopar/core/units.hpp>
#include <autopar/cost/precision.hpp>
#include <autopar/plan/choices.hpp>
#include <autopar/plan/recompute.hpp>
#include <autopar/schedule/kind.hpp>

namespace autopar {

/// `Options::batch_dims` entry of an argument that is the same on all ranks (checked by hash).
inline constexpr int kShared = -1;

/// What a user may fix. Everything set is a constraint: the plan meets it, or planning fails and says why. The names
/// are also keys of autopar.toml and, in capitals after AUTOPAR_, environment variables. Later ones win: defaults,
/// file, code, environment. Comments name words as files have them; `option_text.hpp` turns them into values.
struct Options {
  int stages = 0;        ///< pipeline stages, or positions if a rank runs several; 0 = the planner chooses
  int microbatches = 0;  ///< micro-batches of a step; 0 = the planner chooses
  int min_microbatches = 1;
  int max_microbatches = 64;
  int tensor_parallel = 0;  ///< tensor shards of each replica of every stage; 0 = the planner chooses, 1 = none
  /// auto | on | off: sequence parallelism: norms and residuals between tensor regions are cut by tokens
  Switch sequence_parallel = Switch::kAuto;
  /// auto | whole | chunked: how a linear layer whose result only a cross entropy reads computes its logits: at once,
  /// or in chunks and again in the backward
  ClassHead class_head = ClassHead::kAuto;
  /// auto | on | off: whether operators that follow each other run as one, in the library's own kernels where there are
  /// some; auto: on CUDA devices
  Switch fusion = Switch::kAuto;
  /// auto | off: whether the device's work of repeated steps is recorded and replayed (CUDA graphs)
  CudaGraphs cuda_graphs = CudaGraphs::kAuto;
  int zero = -1;  ///< ZeRO level among replicas; -1 = the planner chooses (0 without model->attach(optimizer))
  /// auto | none | optimizer: the optimizer's state and the parameters that it steps are in host memory. auto, no
  /// value: the planner chooses
  std::optional<Offload> offload{};
  std::vector<int> replicas{};    ///< of each stage, or one entry for all stages; empty = the planner chooses
  std::vector<int> batch_dims{};  ///< one for each tensor argument, default 0; kShared = the same on all ranks
  /// Tensor arguments, by position as in `batch_dims`, whose integers count samples within the rank's own batch.
  /// Examples are edges of a graph and `arange` labels. The index of the rank's first sample is added to a copy of
  /// them; negative integers stay as they are. A call with fewer tensors ignores positions that it does not have.
  std::vector<int> local_indices{};
  /// auto | gpipe | 1f1b | interleaved | zb-h1 | zb-v | synth. auto, no value: the planner chooses
  std::optional<ScheduleKind> schedule{};
  /// auto | none | full | names of modules, with commas: what recomputes its forward before its backward
  RecomputeOption recompute{};
  /// module (its own element types) | tf32 | bf16 | fp16 (as in autocast) | bf16-compute (all in bf16, except losses
  /// and sums over the batch) | fp8 (likewise, with products of linear layers in 8 bits). Parameters, sums of gradients
  /// and the optimizer stay in float32.
  Precision precision = Precision::kModule;
  /// auto | fp32 | bf16: the element type in which ranks send partial sums of fp32 gradients, which are added in fp32.
  /// auto, no value: see `chosen_reduce_dtype`
  std::optional<ReduceDtype> reduce_dtype{};
  BatchNorm batch_norm = BatchNorm::kMicrobatch;  ///< microbatch | exact (synchronised, one micro-batch)
  Bytes device_memory{0};                         ///< of one rank; 0 = what the device has
  double memory_margin = 0.1;                     ///< share of it kept free, [0, 1)
  /// Calls find gradients of earlier calls in `.grad`, or run under no_sync(): reserves memory for both
  bool gradient_accumulation = false;
  double optimizer_state_factor = 2;  ///< optimizer state bytes / parameter bytes, unless an optimizer is attached
  std::string plan_file{};            ///< read if it exists, else written
  bool load_plan = true;              ///< read plan_file if it exists
  bool save_plan = true;              ///< write plan_file after planning
  std::string profile_file{};         ///< the model's profile is written there
  std::string graph_file{};           ///< the captured graph is written there, in Graphviz's dot
  std::string graph_after{};          ///< graph_file shows the program after this pass instead, without stages
  std::string trace_file{};           ///< Chrome trace of the latest steps, of all ranks
  int trace_every = 0;                ///< steps between writings of trace_file; 0 = at the end
  std::string report_file{};          ///< the plan as text is written there; *.html: a page, with what was measured
  bool overwrite = false;  ///< files named here replace existing files, also those that autopar did not write or that
                           ///< belong to another model
  DeviceChoice device = DeviceChoice::kAuto;  ///< auto | cpu | cuda
  bool keep_memory = true;     ///< on CPUs, memory that a step frees stays with the process for the next one
  std::string cluster_file{};  ///< plan for this cluster instead of the devices at hand
  /// roofline: from peak rates | profiled: operators and links are run and timed | auto: profiled on CUDA devices
  CostChoice costs = CostChoice::kAuto;
  /// Profiled costs are kept in this file and read again. Costs that are damaged, or of another device or version, are
  /// measured again. Empty: in ${XDG_CACHE_HOME:-~/.cache}/autopar. none: not kept
  std::string cost_file{};
  std::string log_level = "warn";  ///< trace | debug | info | warn | error | off, e.g. "warn,Planner=debug"
  /// Steps between snapshots of the model, its optimizers and what is kept, in memory of the rank's own host and of
  /// another host; 0 = none
  int snapshot_every = 0;
  bool plan_only = false;  ///< the first call plans, writes the files and throws `PlanOnly`
  bool inference = false;  ///< calls make no gradients, as under NoGradGuard; only forwards are planned
  /// Verify that forward still does what was captured: when members change, and in calls 2, 4, 8, …
  bool verify_capture = true;
  /// Compare the replicas' parameters every so many calls, and throw if they differ; 0 = never
  int verify_replicas = 0;
  Seconds stall_warning{60};   ///< a rank that waits so long reports for whom
  Seconds stall_timeout{600};  ///< and aborts after this time

  friend bool operator==(const Options&, const Options&) = default;
};

}  // namespace autopar
