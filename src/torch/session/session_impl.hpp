#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/nn/module.h>

#include <autopar/capture/init_record.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/trace_file.hpp>
#include <autopar/torch/session.hpp>

#include "capture/algebra/parameter_reads.hpp"
#include "capture/trace/capture_change.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/early_loads.hpp"
#include "torch/cost/measured/profiler.hpp"
#include "torch/cost/profile.hpp"
#include "torch/device/host_copies.hpp"
#include "torch/device/kernel_compilation.hpp"
#include "torch/engine/torch_engine.hpp"
#include "torch/gradients/loss_scaler.hpp"
#include "torch/gradients/norm_over_ranks.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/planning/optional_files.hpp"
#include "torch/planning/plan_files.hpp"
#include "torch/planning/user_cache.hpp"
#include "torch/ranks/collective_try.hpp"
#include "torch/ranks/error_message.hpp"
#include "torch/session/call_arguments.hpp"
#include "torch/session/captured_program.hpp"
#include "torch/session/deployment.hpp"
#include "torch/session/gradient_store.hpp"
#include "torch/session/handshake.hpp"
#include "torch/session/local_indices.hpp"
#include "torch/session/loss_watch.hpp"
#include "torch/session/optimizer_watch.hpp"
#include "torch/session/outside_gradients.hpp"
#include "torch/session/planned_modes.hpp"
#include "torch/session/program_cache.hpp"
#include "torch/session/recorded_step.hpp"
#include "torch/session/repeated_calls.hpp"
#include "torch/session/result_node.hpp"
#include "torch/session/sum_operands.hpp"
#include "torch/session/unattached_watch.hpp"
#include "torch/session/whole_parameters.hpp"
#include "torch/staging/planned_segments.hpp"

namespace autopar::session {

/// Gradients of one backward of this rank's stages.
struct StageGradients {
  std::shared_ptr<CapturedProgram> program;
  const std::vector<ValueId>* reached = nullptr;              ///< parameters whose gradient is defined
  const std::vector<ValueId>* offered = nullptr;              ///< see Call
  std::deque<at::Tensor> by_position;                         ///< of the rank's parameters
  std::vector<std::shared_ptr<torch::autograd::Node>> spent;  ///< see TorchEngine::take_spent
};

/// What became of the gradients of a call, or of several whose sum they are.
struct StepOutcome {
  bool overflow = false;  ///< some rank has one that is infinite or not a number; known with precision = fp16 only
  bool counted = false;   ///< by the loss scaler
};

/// One call on its way through the phases of Impl.
struct Call {
  CallArguments arguments;
  std::shared_ptr<CapturedProgram> program;
  BatchLayout layout;
  std::int64_t batch = 0;
  bool differentiate = false;
  bool loss_mode = false;   ///< forward and backward in this call
  bool accumulate = false;  ///< inside no_sync
  interpret::RngKey draws;
  std::vector<at::Tensor> inputs;  ///< of `arguments`, on the device
  PrologueResult known;
  std::shared_ptr<engine::TorchEngine> engine;
  std::vector<at::Tensor> made_results;  ///< by recorded work
  std::optional<std::deque<at::Tensor>> made_gradients;
  double loss_scale = 1;               ///< of its gradients, until `unscale`
  std::map<ValueId, at::Tensor> sums;  ///< completed
  std::optional<EpilogueRun> tail;
  std::shared_ptr<OwnRegion> region;              ///< see History
  const std::vector<ValueId>* offered = nullptr;  ///< parameters that a backward may be asked for by name
  RepeatedCalls::Turn turn = RepeatedCalls::Turn::kRun;
  bool may_fail = false;  ///< what runs is recorded, or will run again: a failure is not one of the call
  bool has_updated_buffers = false;
  std::vector<std::int64_t> versions{};  ///< of parameters and buffers, when a forward was replayed

  /// Lets go of what running it has made.
  void drop_run() {
    known = {};
    engine.reset();
    sums.clear();
    tail.reset();
  }
};

class Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(World& world, std::shared_ptr<torch::nn::Module> module, Options code, PlanFunction planner,
       std::shared_ptr<InitRecord> init, std::span<const std::byte> members);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  CallResult call(const Flattened& arguments, const ForwardFunction& forward);
  void prepare(const Flattened& arguments, const ForwardFunction& forward);
  void deploy(Plan plan);
  void recapture();

  [[nodiscard]] const Plan& plan() const;
  [[nodiscard]] bool deployed() const { return deployed_; }
  [[nodiscard]] const SessionStats& stats() const { return stats_; }
  [[nodiscard]] c10::Device device() const;
  [[nodiscard]] World& world() { return world_; }
  [[nodiscard]] const parameters::ParameterStore& parameters() const { return parameters_; }

  void attach(torch::optim::Optimizer& optimizer);
  [[nodiscard]] ParameterShard shard(const at::Tensor& handle) const;
  void for_whole_parameters(const std::vector<at::Tensor>& handles, const std::vector<std::vector<at::Tensor>>& locals,
                            const WholeParameters::Function& function, std::size_t written);
  void for_whole_parameters(const WholeParameterFunction& function);
  [[nodiscard]] at::Tensor norm(const std::vector<at::Tensor>& tensors, double ord);
  [[nodiscard]] at::Tensor dot(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);
  [[nodiscard]] at::Tensor clip_grad_norm(const std::vector<at::Tensor>& handles, double max_norm, double norm_type,
                                          bool error_if_nonfinite);
  void set_accumulating(bool accumulating) { accumulating_ = accumulating; }
  [[nodiscard]] bool accumulating() const { return accumulating_; }
  void sync_gradients();
  void drop_accumulated();

  [[nodiscard]] at::Tensor gather(const at::Tensor& handle);
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> gather_state();
  [[nodiscard]] std::unique_ptr<torch::optim::Optimizer> gather_optimizer(torch::optim::Optimizer& optimizer);
  void save(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
            const SaveOptions& options = {});
  void load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
            const LoadOptions& options);

 private:
  // ---- capturing.cpp
  void resolve_once();
  [[nodiscard]] std::string capture_key(const CallArguments& arguments) const;
  [[nodiscard]] trace::CaptureOptions capture_options() const;
  void require_one_precision() const;
  void capture_and_deploy(const CallArguments& arguments, const std::string& key, std::int64_t batch,
                          const ForwardFunction& forward);
  void remember(const std::string& key, std::shared_ptr<CapturedProgram> program);
  void capture_into(CapturedProgram& program, const CallArguments& arguments, const ForwardFunction& forward);
  void compile(CapturedProgram& program);
  void require_same_graph(const CapturedProgram& program);
  /// Whether class heads of programs that are captured now make their logits in chunks.
  [[nodiscard]] bool chunks_heads() const;
  /// Whether operators that follow each other are one (`fusion`).
  [[nodiscard]] bool joins_operators() const;

  // ---- planning.cpp
  /// The programs and the profile become what the plan divides.
  void make_plan(PlannedModes& modes, cost::GraphProfile& profile, std::int64_t batch);

  // ---- statistics_check.cpp
  void require_statistics(const Call& call) const;
  void warn_of_batch_statistics(const CapturedProgram& program, std::int64_t batch);

  // ---- placement.cpp, capturing.cpp
  void require_whole_batches(const CapturedProgram& program, const std::vector<StageId>& stage_of) const;
  [[nodiscard]] std::vector<StageId> stages_of_ops(const CapturedProgram& program,
                                                   const cost::AtomPartition& atoms) const;
  /// @param atoms  of the program as it was captured
  [[nodiscard]] std::vector<StageId> divide_program(CapturedProgram& program, cost::AtomPartition atoms);
  void deploy_state(const PlannedModes& modes, const cost::GraphProfile& profile);
  /// @param others  modes whose parameters and buffers are placed as well
  void place_state(const CapturedProgram& program, const std::vector<StageId>& stage_of,
                   const std::vector<std::shared_ptr<CapturedProgram>>& others);
  [[nodiscard]] std::vector<std::vector<StageId>> homes_in(const OpGraph& graph) const;
  /// By ValueId: the ranks that hold a parameter, ascending.
  [[nodiscard]] std::vector<std::vector<Rank>> holders_in(const OpGraph& graph) const;
  void materialise_state();
  void take_values_of_rank_0();
  void build_runtime(CapturedProgram& program);
  void verify_sizes(CapturedProgram& program, const CallArguments& arguments, const ForwardFunction& forward,
                    const BatchLayout& layout);

  // ---- verification.cpp
  void verify_replicas();
  [[nodiscard]] bool members_changed(const std::string& key, const CallArguments& arguments) const;
  [[nodiscard]] bool is_outdated(CapturedProgram& program, const CallArguments& arguments,
                                 const ForwardFunction& forward, bool members_changed);
  [[nodiscard]] std::optional<trace::CaptureChange> change_of(const CapturedProgram& program,
                                                              const CallArguments& arguments,
                                                              const ForwardFunction& forward);
  void warn_of_change(const trace::CaptureChange& change);
  void require_deployed(const char* member) const;
  [[nodiscard]] at::Tensor handle_of(const OpGraph& graph, ValueId leaf);

  // ---- planned_modes.cpp
  [[nodiscard]] PlannedModes capture_other_modes(const CallArguments& arguments, const ForwardFunction& forward);
  [[nodiscard]] std::shared_ptr<CapturedProgram> capture_in_mode(bool training, bool gradients,
                                                                 const CallArguments& arguments,
                                                                 const ForwardFunction& forward);
  [[nodiscard]] bool may_have_stages() const;

  // ---- memory_check.cpp
  void check_memory(CapturedProgram& program, std::int64_t batch) const;

  // ---- sharding.cpp
  void require_optimizers(const Plan& plan) const;
  /// Whether the planner may choose tensor shards: who steps is known, or nobody does.
  [[nodiscard]] bool may_slice() const { return options_.inference || !optimizers_.empty(); }
  void plan_shards(const CapturedProgram& program);
  void offload_rest(const CapturedProgram& program);
  /// From now on copies that the program reads in place of parameters stay from call to call, as plans count them.
  void keep_copies(const CapturedProgram& program);
  void fit_optimizer(torch::optim::Optimizer& optimizer);
  void refuse_to_save_parts(torch::optim::Optimizer& optimizer) const;
  [[nodiscard]] staging::ShardedParameters sharded_parameters(const CapturedProgram& program) const;

  // ---- tensor_sharding.cpp
  void slice_parameters(const CapturedProgram& program, const cost::GraphProfile& profile);
  [[nodiscard]] tensor_parallel::LeafSlices slices_in(const CapturedProgram& program,
                                                      const std::vector<StageId>& stage_of, StageId stage) const;
  /// Puts what tensor shards exchange into the program; operators get new numbers.
  void shard_program(CapturedProgram& program, std::vector<StageId>& stage_of, cost::AtomPartition& atoms);
  void describe_shards(CapturedProgram& program) const;

  // ---- calls.cpp
  CallHeader next_header(CallKind kind);
  void find_mode(Call& call) const;
  [[nodiscard]] std::exception_ptr inspect(const Flattened& arguments, CallArguments& inspected) const;
  [[nodiscard]] std::vector<CallWord> call_words(const CallArguments& arguments) const;
  /// Rank 0 speaks for all.
  void warn_of_unattached(const std::vector<CallHeader>& headers);
  void open(Call& call, const std::vector<CallHeader>& headers);
  [[nodiscard]] std::int64_t first_sample_of(const BatchLayout& layout) const;
  void run_forward(Call& call);
  void execute(Call& call, Phase phase);
  [[nodiscard]] std::filesystem::path trace_path() const;
  [[nodiscard]] std::vector<at::Tensor> collect_results(Call& call);
  template <class Work>
  auto guarded(const char* action, Work&& work) -> decltype(work());
  template <class Work>
  auto in_step(const char* action, Work&& work) -> decltype(work());

  // ---- repeated_steps.cpp
  void run_step(const std::shared_ptr<Call>& call);
  void run_beside_recording(Call& call);
  /// Whether steps of the program are recorded where they repeat.
  [[nodiscard]] bool may_record(CapturedProgram& program) const;
  [[nodiscard]] bool may_repeat(const Call& call) const;
  [[nodiscard]] bool has_gradients() const;
  [[nodiscard]] StepConditions conditions_of(const Call& call);
  [[nodiscard]] bool has_memory_for_two() const;
  [[nodiscard]] c10::Stream recording_stream();
  [[nodiscard]] std::unique_ptr<devices::DeviceRecording> recording_of(
      Call& call, const std::function<void()>& work, const devices::DeviceRecording* beside = nullptr);
  [[nodiscard]] bool record_step(Call& call);
  [[nodiscard]] bool can_replay(const Call& call);
  void run_recorded(const std::shared_ptr<Call>& call);
  [[nodiscard]] StageGradients make_gradients(Call& call, const std::vector<std::size_t>& outputs,
                                              const std::vector<at::Tensor>& given, const std::vector<ValueId>& roots,
                                              const BackwardRequest& request);
  [[nodiscard]] std::vector<std::int64_t> versions_of_parameters() const;
  void require_same_parameters(const Call& call) const;
  void record_backward(Call& call, const std::vector<std::size_t>& outputs, const std::vector<at::Tensor>& given,
                       const std::vector<ValueId>& roots);

  // ---- result_backward.cpp
  [[nodiscard]] History history_of(Call& call, const std::vector<ValueId>& roots);
  [[nodiscard]] torch::autograd::edge_list parameter_edges(const CapturedProgram& program,
                                                           const std::vector<ValueId>& offered) const;
  void attach_loss_history(Call& call, std::vector<at::Tensor>& results);
  void attach_output_history(const std::shared_ptr<Call>& call, std::vector<at::Tensor>& results);
  [[nodiscard]] std::vector<at::Tensor> input_gradients(Call& call);
  [[nodiscard]] std::vector<at::Tensor> backward_of_outputs(Call& call, const std::vector<std::size_t>& outputs,
                                                            const std::vector<at::Tensor>& gradients,
                                                            const BackwardRequest& request);
  struct AgreedBackward {
    std::vector<bool> defined;  ///< by differentiable result: it gets a gradient on some rank
    bool pending = false;
  };
  [[nodiscard]] AgreedBackward agree_on_backward(const Call& call, const std::vector<at::Tensor>& gradients,
                                                 const BackwardRequest& request);
  [[nodiscard]] std::map<ValueId, at::Tensor> common_gradients(const Call& call,
                                                               const std::vector<std::size_t>& outputs,
                                                               const std::vector<at::Tensor>& gradients,
                                                               const std::vector<bool>& defined);
  void require_same(const at::Tensor& mine, const at::Tensor& mean, const at::Tensor& squares, std::size_t result);
  [[nodiscard]] std::vector<at::Tensor> run_backward(Call& call, const std::vector<std::size_t>& outputs,
                                                     const std::vector<at::Tensor>& gradients,
                                                     const std::map<ValueId, at::Tensor>& common,
                                                     const AgreedBackward& agreed, const BackwardRequest& request);
  [[nodiscard]] StageGradients gradients_by_stages(Call& call, const std::vector<std::size_t>& outputs,
                                                   const std::vector<at::Tensor>& given,
                                                   const std::vector<ValueId>& roots);
  [[nodiscard]] int absent_parameter(const BackwardRequest& request, std::size_t offered) const;
  void require_here(int absent, std::size_t rank) const;
  void require_no_single_parameters(const BackwardRequest& request) const;
  void hand_over(const StageGradients& gradients, const BackwardRequest& request, const at::Tensor& factor,
                 bool accumulate, StepOutcome& outcome, std::vector<at::Tensor>& out);
  void note_loss_backward(const BackwardRequest& request, const at::Tensor& factor);
  void warn_of_own_loss(const Call& call, const std::vector<std::size_t>& outputs,
                        const std::vector<at::Tensor>& gradients);

  // ---- gradients.cpp
  [[nodiscard]] StageGradients gradients_of(Call& call, const std::vector<ValueId>& roots);
  void apply(const StageGradients& gradients, const at::Tensor& factor, bool keep, bool accumulate);
  struct LeavingGradients {
    std::map<const parameters::ShardMemory*, at::Tensor> sets;  ///< host memory, by unit
    std::vector<HandleGradient> copies;  ///< in it, complete when the device has done what is queued
  };
  void add_to_owner(const at::Tensor& handle, const at::Tensor& gradient, bool may_take, LeavingGradients& leaving);
  void add_arrived(const LeavingGradients& leaving);
  void note_gradient(const at::Tensor& handle);
  void reduce_accumulated();
  void flush_reduced();
  void warn_of_second_gradients();
  /// What the plan says that this rank holds at most.
  [[nodiscard]] Bytes planned_memory() const;
  [[nodiscard]] StepOutcome unscale(const Call& call, StageGradients& gradients, std::vector<at::Tensor>& of_inputs);
  [[nodiscard]] bool any_overflow(bool mine);
  [[nodiscard]] bool skips(StepOutcome& outcome);
  void note_scaler();

  // ---- norms.cpp
  [[nodiscard]] at::Tensor complete_norm(const gradients::NormOverRanks& norm);
  [[nodiscard]] at::Tensor beside(const at::Tensor& result, const std::vector<at::Tensor>& operands) const;
  void complete_operands(std::vector<SumOperand>& a, std::vector<SumOperand>& b) const;
  void require_layout(const SumOperand& operand, const at::Tensor& tensor) const;

  // ---- whole.cpp
  [[nodiscard]] WholeParameters::Parts parts_with_state(const parameters::StateTensor& tensor) const;
  void run_on_wholes(const std::vector<WholeParameters::Parts>& parts, std::size_t written,
                     const WholeParameters::Function& function);
  [[nodiscard]] interpret::RngKey next_whole_draws();

  // ---- buffers.cpp
  void update_buffers(Call& call);
  void pool_batch_norms(Call& call);
  struct NormPool;
  void pool_over(const std::vector<Rank>& holders, std::vector<NormPool>& pools, const OpGraph& graph);

  // ---- checkpoint
  [[nodiscard]] std::vector<checkpoint::PlacedTensor> placed() const;
  [[nodiscard]] checkpoint::PlacedTensor placed(const parameters::StateTensor& tensor) const;
  void take_info(const std::optional<checkpoint::CheckpointInfo>& info);

  World world_;  ///< a view: models may outlive what their user made
  std::shared_ptr<torch::nn::Module> module_;
  Options code_, options_;
  bool resolved_ = false;
  planning::UserCache cache_;
  planning::OptionalFiles files_;
  // On a GPU, while the host does something else.
  std::optional<devices::KernelCompilation> kernels_ahead_;  ///< from when the device is known
  std::optional<devices::KernelCompilation> groups_ahead_;   ///< point-wise groups of the latest program
  PlanFunction planner_;
  std::shared_ptr<InitRecord> init_;
  parameters::ParameterStore parameters_;
  Deployment deployment_;
  std::vector<torch::nn::Module*> modules_;  ///< all, for the fingerprint of their modes
  Logger log_;

  bool deployed_ = false;
  std::optional<Plan> given_plan_;
  staging::PlannedSegments segments_;  ///< of the plan
  std::uint64_t planned_hash_ = 0;     ///< of the graph that the plan divides, as captured
  cost::AtomPartition planned_atoms_;  ///< likewise
  ProgramCache programs_;              ///< by capture_key
  bool warned_of_forgetting_ = false;
  MemberWatch members_;
  bool warned_of_change_ = false;
  bool warned_of_batch_statistics_ = false;
  LocalIndexWatch local_indices_;

  std::uint64_t seed_ = 0;  ///< rank 0's
  SessionStats stats_;
  LossWatch losses_;               ///< of rank 0: all ranks have the same
  std::vector<TraceEvent> trace_;  ///< of the latest step, when asked for
  std::chrono::steady_clock::time_point trace_start_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  OptimizerWatch watch_;
  OutsideGradients outside_;  ///< where there are several ranks
  UnattachedWatch unattached_;
  bool warned_of_unattached_ = false;
  std::int32_t model_number_ = 0;  ///< among the World's models, from 1
  checkpoint::EarlyLoads early_loads_;

  RepeatedCalls repeats_;
  std::optional<RecordedStep> recorded_;         ///< of the calls that `repeats_` says
  std::optional<c10::Stream> recording_stream_;  ///< of warm calls and recordings

  std::optional<gradients::LossScaler> scaler_;  ///< with precision = fp16
  bool accumulating_ = false;
  bool warned_of_second_gradients_ = false;
  bool warned_of_own_loss_ = false;
  std::int64_t loss_backwards_ = 0;  ///< since the last call: of losses of the model itself, which send nothing
  double loss_factors_ = 0;          ///< sum of what these came in with
  GradientStore gradients_;

  bool in_whole_function_ = false;                       ///< a function of for_whole_parameters runs on this rank
  std::pair<std::int64_t, std::int64_t> whole_calls_{};  ///< number of the last call, for_whole_parameters since then
};

template <class Work>
auto Impl::guarded(const char* action, Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception&) {
    ranks::fail_without_frames(world_, log_, action);
  }
}

/// As `guarded`, for work whose CheckpointErrors all ranks throw together and go on after.
template <class Work>
auto Impl::in_step(const char* action, Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const CheckpointError&) {
    throw;
  } catch (const std::exception&) {
    ranks::fail_without_frames(world_, log_, action);
  }
}

}  // namespace autopar::session
