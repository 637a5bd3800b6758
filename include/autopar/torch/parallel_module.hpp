#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <autopar/capture/init_record.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/torch/kept.hpp>
#include <autopar/torch/parameter_handles.hpp>
#include <autopar/torch/session.hpp>

namespace autopar {

/// While a NoSyncGuard lives, calls of the model accumulate gradients without reducing them. See
/// ParallelModule::no_sync.
class [[nodiscard]] NoSyncGuard {
 public:
  explicit NoSyncGuard(Session& session) : session_(&session), outer_(session.accumulating()) {
    session.set_accumulating(true);
  }
  NoSyncGuard(NoSyncGuard&& other) noexcept : session_(std::exchange(other.session_, nullptr)), outer_(other.outer_) {}
  NoSyncGuard& operator=(NoSyncGuard&&) = delete;
  ~NoSyncGuard() {
    if (session_ != nullptr) session_->set_accumulating(outer_);
  }

 private:
  Session* session_;
  bool outer_;
};

/// What AutoParallel offers whatever module it wraps: parameters, gradients, files, the plan. Compiled once, in the
/// library.
class ParallelModule : public torch::nn::Module {
 public:
  // ---- parameters
  /// The handles that the module was constructed with. Handles of parameters that this rank owns have data. The others
  /// are placeholders: they have sizes, no memory and never a gradient.
  [[nodiscard]] ParameterHandles parameters(bool recurse = true) const;
  [[nodiscard]] bool owns(const at::Tensor& parameter) const { return session_->owns(parameter); }
  [[nodiscard]] std::vector<at::Tensor> owned_parameters() const { return session_->owned_parameters(); }
  /// The elements of a parameter that this rank holds: all, its shard (under ZeRO), or none.
  [[nodiscard]] ParameterShard shard(const at::Tensor& parameter) const { return session_->shard(parameter); }
  [[nodiscard]] std::int64_t parameter_count() const { return session_->parameter_count(); }
  /// The unsharded value of a parameter or buffer, on every rank. Collective.
  [[nodiscard]] at::Tensor gather(const at::Tensor& parameter) { return session_->gather(parameter); }
  /// All parameters and buffers on rank 0; an empty dictionary on other ranks. Collective.
  [[nodiscard]] torch::OrderedDict<std::string, at::Tensor> gather_state();

  /// An optimizer with the whole, unsharded state on rank 0; null on other ranks. Collective.
  ///
  /// Use it for saving only: `torch::save(*whole, file)` writes a file that `torch::load(optimizer, file)` reads in a
  /// program without autopar. Its steps do not train the model.
  /// @throws InvalidArgument, with the optimizer's class, if autopar has no description of the optimizer's state
  [[nodiscard]] std::unique_ptr<torch::optim::Optimizer> gather_optimizer(torch::optim::Optimizer& optimizer) {
    return session_->gather_optimizer(optimizer);
  }

  // ---- training
  /// Tells the planner what state the optimizer keeps. Parameters can then be sharded (ZeRO) and offloaded to the host.
  ///
  /// Each call of the model compares the optimizer's step counts and hyper-parameters across ranks. The optimizer must
  /// therefore live as long as calls make gradients for its parameters, or until another one is attached to them.
  /// @throws InvalidArgument, with the optimizer's class, if autopar has no description of the optimizer's state
  void attach(torch::optim::Optimizer& optimizer) { session_->attach(optimizer); }
  /// Scales all gradients so that their norm over all ranks is at most `max_norm`. Collective.
  ///
  /// A parameter with two names counts twice and is scaled twice, as with torch::nn::utils::clip_grad_norm_ and
  /// parameters() in one process.
  /// @param norm_type  any positive number, or infinity
  /// @return the norm before scaling: 0-dim, equal on all ranks
  /// @throws InvalidArgument, on every rank, if the norm is not finite and `error_if_nonfinite`; then nothing is scaled
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false) {
    return session_->clip_grad_norm(torch::nn::Module::parameters(), max_norm, norm_type, error_if_nonfinite);
  }
  /// Clips the gradients of a part of the model, such as `model->module().encoder->parameters()`. Collective: ranks
  /// that hold none of these parameters also call it, with the same handles.
  /// @throws InvalidArgument, on every rank, if a handle is not a parameter of this model
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& handles, double max_norm, double norm_type = 2.0,
                             bool error_if_nonfinite = false) {
    return session_->clip_grad_norm(handles, max_norm, norm_type, error_if_nonfinite);
  }
  /// The norm over all elements of a parameter or gradient, on whichever ranks they lie. Collective.
  ///
  /// A rank that holds nothing of the parameter has no gradient and passes the undefined tensor `p.grad()`. If the
  /// gradient is undefined on all ranks, the norm is 0.
  /// @param ord  any positive number, or infinity
  /// @return 0-dim f64, equal on all ranks
  /// @throws InvalidArgument, on every rank, if the ranks name different tensors
  [[nodiscard]] at::Tensor norm(const at::Tensor& part, double ord = 2.0) { return session_->norm({part}, ord); }
  /// The dot product of two such tensors of one parameter, over all elements on all ranks. Collective.
  ///
  /// One of the two may be a tensor of the user, such as a momentum, with the sizes of the handle.
  [[nodiscard]] at::Tensor dot(const at::Tensor& a, const at::Tensor& b) { return session_->dot({a}, {b}); }
  /// The dot products of two lists of tensors, added up, in one exchange. Collective.
  ///
  /// Both lists may hold tensors of the user if they are as long as parameters() and in the same order.
  [[nodiscard]] at::Tensor dot(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    return session_->dot(a, b);
  }
  /// See autopar::for_whole_parameters. Collective.
  void for_whole_parameters(const WholeParameterFunction& function) { session_->for_whole_parameters(function); }
  /// Calls inside the guard's scope accumulate gradients on each rank without communication. The next call outside, or
  /// sync_gradients(), reduces the accumulated gradients. Under ZeRO 2 and 3 each call reduces into gradient shards,
  /// because ranks have no memory for unsharded gradients.
  [[nodiscard]] NoSyncGuard no_sync() { return NoSyncGuard(*session_); }
  void sync_gradients() { session_->sync_gradients(); }
  /// Tells that a step begins, for `stats().preparing`. Does not communicate. training::Run calls it.
  void begin_step() { session_->begin_step(); }
  void zero_grad(bool set_to_none = true) override;
  void train(bool on = true) override;

  // ---- files. Collective, except `keep`.
  /// Registers an object outside the model, by reference: each `save` saves its value, each `load` sets it. Does not
  /// communicate. It may be called before or after the first call; every rank registers the same names before a save
  /// or load.
  ///
  ///   model->keep("epoch", epoch);
  ///   model->keep("sampler", sampler, ap::kPerRank);
  ///
  /// Integers of all sizes are one kind, and so are enums; a value that does not fit is refused. Sizes of tensors may
  /// change in a load; their device and type do not. A value has at most 16 MiB, with kPerRank those of all ranks.
  /// `load` works as for the rest: all values are set, or none. A name that the checkpoint lacks is refused unless
  /// `LoadOptions::missing` allows it. A name that nobody registered is ignored, with a warning in rank 0's log.
  /// @param object  a bool, integer, float, double, enum, std::string, std::vector of numbers, torch::Tensor, or an
  /// object with `save` and `load` (KeptAsArchive, such as a sampler of torch::data; KeptAsText). It must outlive the
  /// model.
  /// @param scope  kAllRanks: a save throws CheckpointError, on every rank, if ranks have different values. kPerRank:
  /// each rank has its own, and only a world of the same size loads it.
  /// @throws InvalidArgument if the name is taken, empty, or has control characters
  template <class T>
  void keep(const std::string& name, T& object, KeptScope scope = KeptScope::kAllRanks) {
    static_assert(
        Keepable<T>,
        "autopar: keep takes a bool, integer, float, double, enum, std::string, std::vector of numbers or "
        "torch::Tensor that is not const, or an object with save and load (ap::KeptAsArchive, ap::KeptAsText)");
    if constexpr (Keepable<T>) session_->keep(name, detail::kept_object(object), scope);
  }
  /// Saves parameters, buffers, and the optimizers' state and hyper-parameters. The checkpoint loads under any plan and
  /// number of ranks. It replaces the folder's previous one when it is complete; a save that ends early changes
  /// nothing. One job at a time saves to a folder. From two ranks on the default format is sharded: all ranks must see
  /// the folder.
  /// @throws CheckpointError, on every rank, for example if the disk is full, another job or model is saving to the
  /// folder, or it has a `model.safetensors` of another program
  template <std::derived_from<torch::optim::Optimizer>... Optimizers>
  void save(const std::string& folder, Optimizers&... optimizers) {
    session_->save(folder, {&optimizers...});
  }
  /// In another format than the default, or in the background:
  /// `model->save(folder, optimizer, {.format = ap::single_file(), .wait = false})`.
  ///
  /// In the background, the call returns when each rank has copied what it will write to host memory, which is checked
  /// before. A later call of the model throws what went wrong, on all ranks. The next save, load or `wait` waits for
  /// the end. The end of the model completes the save within 30 s or abandons it, and the log says which.
  void save(const std::string& folder, torch::optim::Optimizer& optimizer, const SaveOptions& options) {
    session_->save(folder, {&optimizer}, options);
  }
  void save(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
            const SaveOptions& options) {
    session_->save(folder, optimizers, options);
  }
  void save(const std::string& folder, const SaveOptions& options) { session_->save(folder, {}, options); }
  /// Writes this rank's part of a checkpoint to a folder that other ranks need not see, as training::Run does for
  /// snapshots. Files that are there are replaced, and nothing is locked. A save in the background goes on meanwhile.
  /// @param folder  of this rank
  /// @throws CheckpointError, on every rank, if one cannot write
  [[nodiscard]] SavedParts save_parts(const std::string& folder,
                                      const std::vector<torch::optim::Optimizer*>& optimizers,
                                      const AcceptParts& accept) {
    return session_->save_parts(folder, optimizers, accept);
  }
  /// Waits for a save in the background, if there is one. Collective.
  /// @throws CheckpointError, on every rank, if it failed and no call has thrown that
  void wait() { session_->wait(); }
  /// Writes parameters and buffers alone to one safetensors file, under the module's own names, for other programs and
  /// for `load`. The file appears completely or not at all. Folders are made.
  ///
  /// A tied tensor is written once, under its first name. The file's metadata have each other name with that name, as
  /// those of Python's safetensors.torch.save_model.
  /// @param dtype  floating-point tensors are cast to it; others stay as they are
  /// @throws InvalidArgument, on every rank, if `dtype` is not double, float, half or bfloat16, or ranks differ
  /// @throws CheckpointError, on every rank, if rank 0 cannot write
  void export_weights(const std::string& file, std::optional<c10::ScalarType> dtype = std::nullopt) {
    session_->export_weights(file, dtype);
  }
  /// Loads a checkpoint. `folder` may also be a file with the weights of another writer, such as torchvision's
  /// state_dict: any file, or a path that ends in .safetensors.
  ///
  /// Before the first call of the model, hyper-parameters are loaded at once; later changes to them stay, as in one
  /// process. The optimizers' state, and tensors that have no memory yet, are read at the first call from the files
  /// opened here. So the optimizers must live until then. Files are read twice. Several loads are applied in their
  /// order.
  /// @return what is loaded, or will be at the first call, by name; equal on all ranks. Empty with `plan_only`
  /// @throws CheckpointError, on every rank, if the checkpoint is damaged, is of another model or lacks an optimizer's
  /// state. Model and optimizers are then unchanged, and training or another load may follow.
  template <std::derived_from<torch::optim::Optimizer>... Optimizers>
  LoadReport load(const std::string& folder, Optimizers&... optimizers) {
    return session_->load(folder, {&optimizers...});
  }
  /// Loads what names, and rules for names, find: see LoadOptions. Options must be equal on all ranks.
  LoadReport load(const std::string& folder, const LoadOptions& options) { return session_->load(folder, {}, options); }
  /// Loads weights alone if the checkpoint has no optimizer state:
  /// `model->load(folder, optimizer, {.optimizer = ap::Missing::kAllowed})`.
  LoadReport load(const std::string& folder, torch::optim::Optimizer& optimizer, const LoadOptions& options) {
    return session_->load(folder, {&optimizer}, options);
  }
  LoadReport load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                  const LoadOptions& options) {
    return session_->load(folder, optimizers, options);
  }

  // ---- plan
  [[nodiscard]] const Plan& plan() const { return session_->plan(); }
  /// Deploys an existing plan instead of planning at the first call. Pass the same plan on every rank.
  void deploy(Plan plan) { session_->deploy(std::move(plan)); }
  void recapture() { session_->recapture(); }
  [[nodiscard]] const SessionStats& stats() const { return session_->stats(); }
  /// Options::snapshot_every, as training::Run reads it.
  [[nodiscard]] int snapshot_every() const { return session_->snapshot_every(); }

  // ---- refused by name instead of inherited by accident
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  void pretty_print(std::ostream& stream) const override;

 protected:
  /// @param init     the construction of `module`, if it was recorded
  /// @param members  the bytes of the object `module`
  ParallelModule(World& world, std::shared_ptr<torch::nn::Module> module, Options&& options, PlanFunction planner,
                 std::shared_ptr<InitRecord> init, std::span<const std::byte> members);

  /// Runs a construction and records it. Random values are drawn only on request if these options ask for a plan alone.
  [[nodiscard]] static std::shared_ptr<InitRecord> record(const std::function<void()>& construct,
                                                          const Options& options);

  [[nodiscard]] Session& session() { return *session_; }
  /// A number that is equal on all ranks, for a function whose address differs among them: by the order of first uses.
  [[nodiscard]] std::size_t number_of(const std::string& function);

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<Session> session_;
  std::map<std::string, std::size_t> functions_;
};

}  // namespace autopar
