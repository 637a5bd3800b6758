#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/runtime/transport.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/pipeline.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/trace/capture.hpp"
#include "torch/engine/rank_runtime.hpp"
#include "torch/planning/model_program.hpp"
#include "torch/programs/epilogue.hpp"
#include "torch/programs/member_watch.hpp"
#include "torch/programs/prologue.hpp"
#include "torch/programs/reached_parameters.hpp"
#include "torch/programs/recent_map.hpp"
#include "torch/programs/replicated_updates.hpp"
#include "torch/staging/staged_graph.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

namespace autopar::programs {

/// When a program was found to be what forward does.
struct Verification {
  std::int64_t calls = 0;   ///< of the program since its capture, the one under way included
  std::int64_t agreed = 0;  ///< call at which it was
  std::int64_t next = 2;    ///< call at which it is asked again, whatever members are
  MembersSeen members;
  std::vector<std::pair<at::Tensor, std::uint32_t>> constants;  ///< with the version at the capture
  std::set<std::int64_t> batches;  ///< global batches at which a capture gave the same program
  bool outdated = false;           ///< found to be another than what forward does
};

/// What runs of a program have in common, beside data in memory.
struct RepeatableWork {
  bool is_whole = true;    ///< all of it: nothing is handed out that was an argument, or drawn by numbers of the host
  std::int64_t draws = 0;  ///< operators that draw
};

/// How a program's results lie among what forward returns.
struct ReturnedResults {
  std::shared_ptr<const void> prototype;  ///< see CallResult
  std::vector<std::size_t> positions;     ///< of the graph's outputs among the flattened results
  std::size_t count = 0;                  ///< flattened results, undefined ones included
};

/// A program divided among the stages and tensor shards of a plan.
struct PartitionedProgram {
  staging::StagedGraph staged;
  std::vector<std::vector<StageId>> parts;  ///< [stage of the plan] stages of `staged`, ascending
  interpret::RecomputedAtoms recomputed;    ///< what the stages recompute
  tensor_parallel::ShardedGraph sharded;    ///< the graph as it was put together for tensor shards
  std::vector<StageId> tensor_stages;       ///< of the plan, as ShardedGraph::Slices::stage; empty: there are none
  OpGraph own_graph;                        ///< of this rank's tensor shards; unused if there are none
};

/// What runs a program on this rank.
struct ProgramRuntime {
  std::unique_ptr<engine::RankRuntime> stages;
  std::unique_ptr<Prologue> prologue;
  std::unique_ptr<Epilogue> epilogue;
  std::unique_ptr<ReplicatedUpdates> replicated_updates;
  std::vector<GroupId> groups;         ///< by reduction group of the pipeline
  std::vector<GroupId> gather_groups;  ///< likewise, for parameters that are gathered
  std::vector<GroupId> tensor_groups;  ///< by stage of the pipeline: the tensor shards of this rank's replica
};

/// The model's forward in one mode for one argument signature: captured, divided among the ranks and ready to run.
struct CapturedProgram : planning::ModelProgram {
  std::vector<trace::InputSpec> inputs;
  ReturnedResults returned;
  Verification verification;
  PartitionedProgram partition;
  ProgramRuntime runtime;
  std::int64_t checked_batch = 0;  ///< the largest whose memory was checked

  /// What this rank's stages run.
  [[nodiscard]] const OpGraph& runnable() const {
    return partition.tensor_stages.empty() ? graph : partition.own_graph;
  }

  /// Whether a constant was written since the capture, or forward was found to do something else.
  [[nodiscard]] bool is_stale() const;
  /// This rank's actions of a call under the plan that it was divided by; made and validated once for each layout and
  /// phase that is remembered. Valid until the next request.
  [[nodiscard]] const std::vector<Action>& actions(const BatchLayout& layout, const Plan& by, Phase phase, bool reduce,
                                                   Rank rank);
  /// The gradient of a single loss, which is `scale`: kept, as before the first forward a device waits for each kernel.
  /// Not to be written to.
  [[nodiscard]] const at::Tensor& loss_gradient(double scale, c10::Device device);
  /// Found once.
  [[nodiscard]] const RepeatableWork& repeatable_work();
  /// Found once for each roots.
  [[nodiscard]] const ReachedParameters& reached(const std::vector<ValueId>& roots);

 private:
  [[nodiscard]] Program program(const Pipeline& pipeline, const BatchLayout& layout, const Plan& by, Phase phase) const;

  /// Batches of ever new sizes must not fill the memory with actions.
  static constexpr std::size_t kRememberedLayouts = 64;

  using Key = std::tuple<std::vector<std::int64_t>, int, Phase, bool>;
  RecentMap<Key, std::vector<Action>> actions_{kRememberedLayouts};
  std::map<std::vector<ValueId>, ReachedParameters> reached_;
  std::optional<RepeatableWork> repeatable_work_;
  at::Tensor loss_gradient_;
  double loss_gradient_scale_ = 0;  ///< of `loss_gradient_`
};

}  // namespace autopar::programs
