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
#include "torch/engine/message.hpp"
#include "torch/interpret/segment_interpreter.hpp"
#include "torch/interpret/stage_parts.hpp"

namespace torch::autograd {
struct Node;
}

namespace autopar::parameters {
class ComputeCopy;
}

namespace autopar::engine {

/// A captured program and its division among the ranks: what all stages have in common.
struct DividedProgram {
  const OpGraph* graph = nullptr;
  const algebra::BatchSemantics* plan = nullptr;
  Pipeline pipeline;
  std::vector<std::vector<OpId>> stage_ops;             ///< by stage, ascending
  std::vector<std::vector<ValueId>> channel_values;     ///< by channel, the order in messages
  std::vector<std::vector<ValueId>> channel_gradients;  ///< those whose gradients come back
  c10::Device device = c10::Device(c10::kCPU);
  bool splits_backwards = false;                             ///< backwards of its stages come in two parts
  interpret::RecomputedAtoms recomputed;                     ///< what stages recompute before its backward
  Rank rank;                                                 ///< this one
  std::map<OpId, tensor_parallel::ShardedStep> shard_steps;  ///< of stages with several tensor shards
  /// Reduction groups whose parameters are gathered for compute actions (ZeRO 3): by op, those that it reads, directly
  /// or through views.
  std::map<OpId, std::vector<int>> gathered_by;
  std::map<OpId, std::vector<int>> resharded_after;  ///< see StagedGraph
};

/// The gate of the compute action that runs a stage, as its operators and their autograd nodes use it.
struct StageGate {
  ComputeGate* gate = nullptr;
  bool backward = false;  ///< operators that run do so again

  /// A group that is gathered for compute actions is one bucket.
  void unshard(const std::vector<int>& groups) const {
    for (const int group : groups) gate->unshard(group, 0);
  }
  void reshard(const std::vector<int>& groups) const {
    for (const int group : groups) gate->reshard(group, 0);
  }
};

/// A stage of a captured program on one rank, prepared once and used by every call (see TorchEngine).
///
/// Parameters are read through compute copies: autograd leaves that share the owner handles' memory, or that of what is
/// made of owners elsewhere, so that gradients are gathered here and the handles' `.grad` holds complete sums only.
/// Casts of parameters are made of those once a call, or elsewhere, or are what is kept of earlier calls (see
/// ComputeCopy); gradients flow back through them, so that they are
/// added up in the parameters' own element type.
class Stage {
 public:
  /// The owner handle of a parameter or buffer leaf; called for those of the stage only.
  using Lookup = std::function<at::Tensor(ValueId)>;

  /// Where leaves come from.
  struct Leaves {
    Lookup handle;
    /// What a parameter is computed with in place of its owner handle, of the whole parameter's sizes; undefined: the
    /// handle itself. Whoever gives it brings it up to date before the stage runs.
    Lookup compute = [](ValueId) { return at::Tensor(); };
    /// What stands in for casts of a parameter, of their element type; undefined: they are made here. Brought up to
    /// date likewise; the compute copy itself need not have memory then.
    Lookup copy = [](ValueId) { return at::Tensor(); };
  };

  /// @param program  must outlive the stage
  /// @param reduced  by ValueId: parameters in a reduction group of this rank; must outlive the stage
  Stage(const DividedProgram& program, StageId stage, const Leaves& leaves, const std::vector<bool>& reduced);

  [[nodiscard]] const OpGraph& graph() const { return *program_.graph; }
  [[nodiscard]] const algebra::BatchSemantics& plan() const { return *program_.plan; }
  [[nodiscard]] const DividedProgram& program() const { return program_; }
  [[nodiscard]] StageId stage() const { return stage_; }
  [[nodiscard]] c10::Device device() const { return program_.device; }

  [[nodiscard]] const std::vector<ValueId>& incoming() const { return incoming_; }  ///< values that messages bring
  [[nodiscard]] const std::vector<ValueId>& outgoing() const { return outgoing_; }  ///< values that messages take away
  [[nodiscard]] const std::vector<algebra::GlobalSum>& sums() const { return sums_; }  ///< made by this stage
  [[nodiscard]] const std::vector<ValueId>& parameters() const {
    return parameters_;
  }  ///< read by this stage, ascending
  [[nodiscard]] const std::vector<ValueId>& private_buffers() const { return private_buffers_; }

  /// The compute copy of a parameter of this stage.
  [[nodiscard]] const at::Tensor& compute_copy(ValueId parameter) const { return environment_[parameter.index()]; }
  /// Whether weight backwards may add to the gradient of a parameter.
  [[nodiscard]] bool defers(ValueId parameter) const;
  /// While set, called with each parameter of a reduction group whose gradient a backward has just added.
  void on_gradient(std::function<void(ValueId)> added) { *gradient_added_ = std::move(added); }
  /// Whom to ask for parameters that are gathered for compute actions. Before each.
  void set_gate(StageGate gate) { *gate_ = gate; }
  /// Follows handles, and what is computed with in their place, whose memory or requires_grad changed since, and the
  /// thread's stream. O(parameters of the stage).
  void refresh_leaves();
  /// Adds the memory of casts of parameters that are kept, which are brought up to date; null for those that calls
  /// make. O(casts of the stage).
  void add_kept_casts(std::vector<const void*>& memory) const;
  /// From now on casts of parameters are made anew, each when an operator first reads it: made together, they would
  /// keep a device waiting for the host. They stay until `drop_casts`, and as long as a backward needs them.
  /// @param differentiate  backwards will follow
  void start_casts(bool differentiate);
  void drop_casts();
  /// What the slice that runs now works on: the leaves of the stage, to which it adds its values and takes them away
  /// again. One slice at a time.
  [[nodiscard]] replay::Environment& environment() { return environment_; }
  /// Takes everything but the leaves out of the environment, after a slice that did not end.
  void clear_environment();
  /// Whether a value stays in the environment from slice to slice.
  [[nodiscard]] bool is_resident(ValueId value) const;
  [[nodiscard]] interpret::SegmentInterpreter& runner() { return *runner_; }
  /// As torch::autograd::backward; weight gradients may be made beside the others, see `run_split`.
  void backward(std::vector<at::Tensor> roots, std::vector<at::Tensor> gradients);
  /// A copy of what the user's handle of a leaf of the stage refers to now.
  [[nodiscard]] const at::Tensor& handle(ValueId leaf) const { return handles_[leaf.index()]; }

 private:
  struct Cast {
    ValueId parameter, result;
  };
  [[nodiscard]] const std::vector<OpId>& ops() const { return program_.stage_ops[stage_.index()]; }
  void find_boundary();
  void find_sums();
  void find_leaves(const Lookup& lookup);
  void find_casts();
  void find_readers_of_casts(const std::vector<interpret::StagePart>& parts);
  [[nodiscard]] at::Tensor compute_memory(ValueId parameter) const;
  [[nodiscard]] at::Tensor copy_elsewhere(ValueId parameter, const ValueInfo& form) const;
  /// What is kept on the parameter's handle; null where that is not what the cast is.
  [[nodiscard]] parameters::ComputeCopy* kept_copy(ValueId parameter, const ValueInfo& form) const;
  [[nodiscard]] at::Tensor cast(ValueId parameter, const ValueInfo& form) const;
  void make_cast(OpId op);
  [[nodiscard]] interpret::OpHooks hooks(const std::vector<interpret::StagePart>& parts);
  [[nodiscard]] std::shared_ptr<const interpret::TensorShards> tensor_shards() const;
  void hold_accumulator(ValueId parameter);

  const DividedProgram& program_;
  StageId stage_;
  const std::vector<bool>& reduced_;
  std::vector<ValueId> incoming_, outgoing_, parameters_, private_buffers_;
  std::vector<algebra::GlobalSum> sums_;
  std::vector<ValueId> state_;                       ///< parameters and buffers that the stage reads
  std::vector<Cast> casts_;                          ///< made by the ops that run once a call
  std::vector<OpId> each_slice_;                     ///< the other ops
  std::map<OpId, std::vector<OpId>> casts_read_by_;  ///< made when their readers run
  std::vector<OpId> made_first_;                     ///< the other casts
  std::map<std::tuple<ValueId, c10::ScalarType, bool>, at::Tensor> made_casts_;  ///< by parameter, type and history
  bool differentiates_ = false;
  std::vector<bool> resident_;  ///< by ValueId, see `is_resident`
  Lookup compute_, copy_;
  replay::Environment handles_, environment_;
  std::shared_ptr<std::function<void(ValueId)>> gradient_added_ = std::make_shared<std::function<void(ValueId)>>();
  std::shared_ptr<StageGate> gate_ = std::make_shared<StageGate>();  ///< autograd's nodes have it, too
  /// Autograd holds them weakly: held here they are not made again for every call, and keep their hooks.
  std::map<ValueId, std::shared_ptr<torch::autograd::Node>> accumulators_;
  c10::Stream accumulating_stream_;             ///< autograd runs an accumulator on the stream that it was made on
  std::shared_ptr<autograd::SideStream> side_;  ///< of weight gradients, see `run_split`; null where they are reduced
  std::unique_ptr<interpret::SegmentInterpreter> runner_;
};

}  // namespace autopar::engine
