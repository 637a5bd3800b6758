#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <autopar/capture/op_graph.hpp>
#include <autopar/runtime/compute_gate.hpp>
#include <autopar/schedule/pipeline.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/algebra/global_sums.hpp"
#include "torch/autograd/sum_type.hpp"
#include "torch/engine/gradient_accumulators.hpp"
#include "torch/engine/message.hpp"
#include "torch/engine/parameter_casts.hpp"
#include "torch/interpret/segment_interpreter.hpp"
#include "torch/interpret/stage_parts.hpp"

namespace autopar::engine {

/// A captured program and its partition among the ranks, shared by all stages.
struct PartitionedProgram {
  const OpGraph* graph = nullptr;
  const algebra::BatchSemantics* plan = nullptr;
  Pipeline pipeline;
  std::vector<std::vector<OpId>> stage_ops;             ///< by stage, ascending
  std::vector<std::vector<ValueId>> channel_values;     ///< by channel, the order in messages
  std::vector<std::vector<ValueId>> channel_gradients;  ///< values of the channel whose gradients come back
  c10::Device device = c10::Device(c10::kCPU);
  bool splits_backwards = false;                             ///< backwards of stages have two parts
  interpret::RecomputedAtoms recomputed;                     ///< atoms that stages recompute before their backward
  Rank rank;                                                 ///< this rank
  std::map<OpId, tensor_parallel::ShardedStep> shard_steps;  ///< for stages with several tensor shards
  /// By op, the reduction groups that it reads, directly or through views, and whose parameters are gathered for
  /// compute actions (ZeRO 3).
  std::map<OpId, std::vector<int>> gathered_by;
  std::map<OpId, std::vector<int>> resharded_after;  ///< see StagedGraph
};

/// The gate of the compute action that runs a stage, for the stage's operators and autograd nodes.
struct StageGate {
  ComputeGate* gate = nullptr;
  bool backward = false;  ///< whether operators that run now are recomputed in a backward

  /// A group that is gathered for compute actions has one bucket.
  void unshard(const std::vector<int>& groups) const {
    for (const int group : groups) gate->unshard(group, 0);
  }
  void reshard(const std::vector<int>& groups) const {
    for (const int group : groups) gate->reshard(group, 0);
  }
};

/// What enters and leaves a stage.
struct StageBoundary {
  std::vector<ValueId> incoming;         ///< values that messages bring
  std::vector<ValueId> outgoing;         ///< values that messages carry away
  std::vector<algebra::GlobalSum> sums;  ///< computed by the stage
};

/// Parameters and buffers that a stage reads.
struct StageState {
  std::vector<ValueId> all;              ///< ascending
  std::vector<ValueId> parameters;       ///< ascending
  std::vector<ValueId> updated_buffers;  ///< that forward writes
};

/// A stage of a captured program on one rank. Prepared once and used by every call (see TorchEngine).
///
/// Parameters are read through compute copies. These are autograd leaves that share memory with the owner handles, or
/// with tensors that are computed from owners elsewhere. Gradients are thus accumulated here, and the handles' `.grad`
/// holds complete sums only. Casts of parameters are made once for each call, or elsewhere, or kept from earlier calls
/// (see ComputeCopy). Gradients flow back through them and are accumulated in the parameters' own element type.
class Stage {
 public:
  /// Returns the owner handle of a parameter or buffer leaf; called for the stage's leaves only.
  using Lookup = std::function<at::Tensor(ValueId)>;

  /// The tensors of a stage's leaves.
  struct Leaves {
    Lookup handle;
    /// The tensor that replaces a parameter's owner handle in computation, with the unsharded sizes; undefined: the
    /// handle itself. Its provider updates it before the stage runs.
    Lookup compute = [](ValueId) { return at::Tensor(); };
    /// The tensor that replaces casts of a parameter, of the casts' element type; undefined: the stage casts. Its
    /// provider updates it before the stage runs. The compute copy then needs no memory.
    Lookup copy = [](ValueId) { return at::Tensor(); };
    fp8::Layers* fp8 = nullptr;  ///< layers that run in 8 bits; outlives the stage; null: none
  };

  /// @param program  must outlive the stage
  /// @param reduced  by ValueId: whether a parameter is in a reduction group of this rank; must outlive the stage
  /// @param unwritten  sums to which backwards of reduced parameters write the first gradient; null: there are none
  Stage(const PartitionedProgram& program, StageId stage, const Leaves& leaves, const std::vector<bool>& reduced,
        std::shared_ptr<autograd::UnwrittenSums> unwritten = nullptr);

  [[nodiscard]] const OpGraph& graph() const { return *program_.graph; }
  [[nodiscard]] const algebra::BatchSemantics& plan() const { return *program_.plan; }
  [[nodiscard]] const PartitionedProgram& program() const { return program_; }
  [[nodiscard]] StageId stage() const { return stage_; }
  [[nodiscard]] c10::Device device() const { return program_.device; }

  [[nodiscard]] const StageBoundary& boundary() const { return boundary_; }
  [[nodiscard]] const std::vector<ValueId>& parameters() const {
    return state_.parameters;
  }  ///< parameters that this stage reads, ascending
  [[nodiscard]] const std::vector<ValueId>& private_buffers() const { return state_.updated_buffers; }

  /// The compute copy of a parameter of this stage.
  [[nodiscard]] const at::Tensor& compute_copy(ValueId parameter) const { return environment_[parameter.index()]; }
  /// Whether weight backwards may add to the gradient of a parameter.
  [[nodiscard]] bool defers(ValueId parameter) const;
  /// Sets a function that is called for each parameter of a reduction group when a backward has added its gradient.
  void on_gradient(std::function<void(ValueId)> added) { accumulators_.on_gradient(std::move(added)); }
  /// Sets the gate for parameters that are gathered for compute actions; called before each compute action.
  void set_gate(StageGate gate) { *gate_ = gate; }
  /// Updates leaves whose handle or compute tensor changed memory or requires_grad, and follows the thread's stream.
  /// O(parameters of the stage).
  void refresh_leaves();
  /// See ParameterCasts::add_kept.
  void add_kept_casts(const std::map<ValueId, at::Tensor>& copies, std::vector<const void*>& memory) const {
    casts_.add_kept(handles_, copies, memory);
  }
  /// From now on casts of parameters are made when an operator first reads them. If they were made together, a device
  /// would wait for the host. They are kept until `drop_casts`, and as long as a backward needs them.
  /// @param differentiate  whether backwards will follow
  /// @param copies  see ParameterCasts::start
  void start_casts(bool differentiate, const std::map<ValueId, at::Tensor>& copies = {}) {
    casts_.start(environment_, handles_, differentiate, copies);
  }
  void drop_casts() { casts_.drop(environment_); }
  /// The values of the current slice: the leaves of the stage, and the values that the slice adds and removes. One
  /// slice at a time.
  [[nodiscard]] replay::Environment& environment() { return environment_; }
  /// Removes everything but the leaves, after a slice that did not complete.
  void clear_environment();
  /// Whether a value stays in the environment across slices.
  [[nodiscard]] bool is_resident(ValueId value) const;
  [[nodiscard]] interpret::SegmentInterpreter& runner() { return *runner_; }
  /// As torch::autograd::backward; weight gradients may run on a side stream, see `run_split`.
  void backward(std::vector<at::Tensor> roots, std::vector<at::Tensor> gradients);
  /// The current tensor of the user's handle of a leaf of the stage.
  [[nodiscard]] const at::Tensor& handle(ValueId leaf) const { return handles_[leaf.index()]; }

 private:
  [[nodiscard]] const std::vector<OpId>& ops() const { return program_.stage_ops[stage_.index()]; }
  void find_boundary();
  void find_sums();
  void find_leaves(const Lookup& lookup);
  [[nodiscard]] at::Tensor compute_memory(ValueId parameter) const;
  [[nodiscard]] interpret::OpHooks hooks(const std::vector<interpret::StagePart>& parts);
  [[nodiscard]] std::shared_ptr<const interpret::TensorShards> tensor_shards() const;

  const PartitionedProgram& program_;
  StageId stage_;
  StageBoundary boundary_;
  StageState state_;
  std::vector<bool> resident_;  ///< by ValueId, see `is_resident`
  Lookup compute_;
  ParameterCasts casts_;
  GradientAccumulators accumulators_;
  replay::Environment handles_, environment_;
  std::shared_ptr<StageGate> gate_ = std::make_shared<StageGate>();  ///< shared with autograd's nodes
  std::shared_ptr<autograd::SideStream> side_;  ///< for weight gradients, see `run_split`; null if they are reduced
  std::unique_ptr<interpret::SegmentInterpreter> runner_;
};

}  // namespace autopar::engine
