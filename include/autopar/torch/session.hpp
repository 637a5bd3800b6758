#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/flatten.hpp>
#include <autopar/core/cluster.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/torch/checkpoint_format.hpp>
#include <autopar/torch/kept.hpp>
#include <autopar/torch/load_options.hpp>
#include <autopar/torch/saved_parts.hpp>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace autopar::session {
class Impl;
}

namespace autopar {

class InitRecord;

/// The tensors of a result, and the result they belong to, as the capture saw it (see with_tensors).
struct CallResult {
  std::vector<at::Tensor> tensors;
  std::shared_ptr<const void> prototype;
};

/// The user's forward as a function of the tensors in the flattened arguments.
using ForwardFunction = std::function<CallResult(const std::vector<at::Tensor>&)>;

/// The states of a parameter by their name in the optimizer ("exp_avg"). States of a second optimizer of the same
/// parameter have the suffix ".2".
using WholeStates = std::map<std::string, at::Tensor>;
/// Work on one unsharded parameter: see for_whole_parameters.
using WholeParameterFunction =
    std::function<void(const std::string& name, at::Tensor& value, at::Tensor& grad, WholeStates& states)>;

/// The number of captured programs that are kept, least recently used dropped first. There is one for each argument
/// signature and mode. The limit bounds the memory when a constant argument changes in each call.
inline constexpr std::size_t kRememberedPrograms = 64;

/// Statistics of the calls so far, on this rank.
struct SessionStats {
  std::int64_t calls = 0;              ///< of forward
  std::int64_t captures = 0;           ///< of forward: for argument signatures and modes that were new, invalidated or
                                       ///< dropped
  std::int64_t microbatches = 0;       ///< of the last call
  std::int64_t global_samples = 0;     ///< of the last call, over all ranks
  std::int64_t trained_samples = 0;    ///< of all calls that made gradients, over all ranks
  std::int64_t replayed = 0;           ///< calls whose device work replayed a CUDA graph (Options::cuda_graphs)
  std::int64_t losses_not_finite = 0;  ///< training calls whose loss was NaN or infinite; on GPUs, of the losses that
                                       ///< have reached the host
  Seconds planning{};                  ///< first capture, plan and deployment
  Seconds last_call{};                 ///< the last call's forward, and in loss mode its backward
  Seconds preparing{};             ///< from `begin_step`, and from calls within no_sync, until the next call, as for
                                   ///< data; of a GPU that has work meanwhile, nothing
  double loss_scale = 1;           ///< of the next call; always 1 unless precision = fp16
  std::int64_t skipped_steps = 0;  ///< steps for which no rank has gradients, because fp16 overflowed on some rank
};

/// What a rank holds of a parameter or buffer.
struct ParameterShard {
  std::vector<std::int64_t> sizes;  ///< of the unsharded tensor
  std::int64_t begin = 0;           ///< first element held here, in the memory order of the unsharded tensor
  std::int64_t end = 0;             ///< one past the last element
  bool whole = true;                ///< unsharded, with its own sizes; otherwise the handle's data and `.grad` are flat
  int dim = -1;                     ///< tensor parallel: the rank holds a slice along this dim instead; -1: no slice
  /// The indices of `dim` in such a slice: ranges [first, second), several for fused projections. `begin` and `end` are
  /// 0 if the slice is not contiguous in the unsharded tensor.
  std::vector<std::pair<std::int64_t, std::int64_t>> indices{};
  /// ZeRO among the replicas of such a slice: this rank holds elements [first, second) of the slice, in the slice's
  /// memory order, flat. Empty: it holds the whole slice, with its own sizes.
  std::optional<std::pair<std::int64_t, std::int64_t>> of_slice{};
};

/// Drives one model on all ranks: captures, plans and deploys it at the first call, then runs every call and applies
/// its gradients. The type-erased half of AutoParallel. Every rank calls collective members in the same order.
class Session {
 public:
  /// @param init     the recorded construction if `module` consists of placeholders; null if it has values
  /// @param members  the bytes of the object `module`: when they change, captures are verified again
  Session(World& world, std::shared_ptr<torch::nn::Module> module, Options code, PlanFunction planner,
          std::shared_ptr<InitRecord> init, std::span<const std::byte> members = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Whether these options, together with the process's options, ask for a plan only. False if the options are invalid;
  /// the first call reports that on all ranks.
  [[nodiscard]] static bool only_plans(const Options& code);

  /// One call of the model. Collective.
  [[nodiscard]] CallResult call(const Flattened& arguments, const ForwardFunction& forward);
  /// Plans and deploys without running. Collective.
  void prepare(const Flattened& arguments, const ForwardFunction& forward);
  /// Deploys this plan instead of making one; before the first call. Collective: pass the same plan on every rank.
  void deploy(Plan plan);
  /// Drops all captures. The next call of each kind captures again; parameters stay where they are.
  void recapture();

  /// @throws InvalidArgument before the first call, deploy or prepare
  [[nodiscard]] const Plan& plan() const;
  [[nodiscard]] bool deployed() const;
  [[nodiscard]] const SessionStats& stats() const;
  /// Options::snapshot_every as file, environment and code have it; 0 if the options are invalid, which the first call
  /// reports on all ranks.
  [[nodiscard]] int snapshot_every() const;
  [[nodiscard]] c10::Device device() const;
  [[nodiscard]] World& world();

  // ---- parameters
  [[nodiscard]] bool owns(const at::Tensor& handle) const;
  [[nodiscard]] std::vector<at::Tensor> owned_parameters() const;
  [[nodiscard]] std::int64_t parameter_count() const;  ///< elements; tied tensors count once
  /// What this rank holds of a parameter or buffer; nothing if it is a placeholder.
  /// @pre deployed
  [[nodiscard]] ParameterShard shard(const at::Tensor& handle) const;
  /// Runs `function` on unsharded tensors. Collective: all ranks pass the same `handles` in the same order, including
  /// parameters that they do not hold, whose `locals` are ignored.
  ///
  /// `locals` [i] have this rank's layout of parameter `handles` [i]: its value, its gradient, states of an optimizer.
  /// A tensor may be undefined, then on all holders. They are assembled on one of the holders, which calls `function`
  /// (i, whole). `function` may write to the tensors or replace them by others of the same form. The first `written` of
  /// them are then copied into the tensors of all holders.
  ///
  /// Ranks run concurrently, each in the order of `handles`. If `function` throws, all ranks throw and this parameter
  /// is unchanged. Memory: at most twice the largest parameter with its tensors.
  /// @pre deployed
  /// @throws InvalidArgument, on every rank, if holders disagree about which tensors there are
  void for_whole_parameters(const std::vector<at::Tensor>& handles, const std::vector<std::vector<at::Tensor>>& locals,
                            const std::function<void(std::size_t i, std::vector<at::Tensor>& whole)>& function,
                            std::size_t written = static_cast<std::size_t>(-1));
  /// Runs `function` for all parameters of the model, with their gradients and the states of attached optimizers.
  /// Collective.
  /// @throws InvalidArgument, on every rank, if the function adds, removes or resizes a tensor
  void for_whole_parameters(const WholeParameterFunction& function);
  /// The unsharded value, on every rank. Collective.
  [[nodiscard]] at::Tensor gather(const at::Tensor& handle);
  /// All parameters and buffers by name on rank 0; empty on other ranks. Collective.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> gather_state();
  /// On rank 0 an optimizer of the same class and options with the unsharded state; null on other ranks. Collective.
  [[nodiscard]] std::unique_ptr<torch::optim::Optimizer> gather_optimizer(torch::optim::Optimizer& optimizer);

  // ---- training
  void attach(torch::optim::Optimizer& optimizer);
  /// The norm over all elements of these parameters and gradients, on whichever ranks they lie: 0-dim f64, equal on all
  /// ranks. A rank that holds nothing of a parameter passes an undefined tensor for its gradient. Collective.
  /// @throws InvalidArgument, on every rank, if the ranks name different tensors
  [[nodiscard]] at::Tensor norm(const std::vector<at::Tensor>& tensors, double ord);
  /// The dot product over all elements on all ranks: 0-dim f64, or c128 for complex parameters. Collective. One of two
  /// tensors may be a tensor of the user, with the sizes of the handle. Both may be, if the lists have one tensor for
  /// each parameter of the module, in order.
  [[nodiscard]] at::Tensor dot(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);
  /// Clips the gradients of these parameters; each counts as often as it is given. Collective.
  /// @return the norm before scaling
  [[nodiscard]] at::Tensor clip_grad_norm(const std::vector<at::Tensor>& handles, double max_norm, double norm_type,
                                          bool error_if_nonfinite);
  void set_accumulating(bool accumulating);
  [[nodiscard]] bool accumulating() const;
  /// Reduces the accumulated gradients and adds them to `.grad`. Collective.
  void sync_gradients();
  /// Drops gradients that were accumulated and not yet reduced.
  void drop_accumulated();
  /// See ParallelModule::begin_step.
  void begin_step();

  // ---- files. Collective, except `keep`.
  /// Registers an object of the user for save and load. Does not communicate.
  /// @throws InvalidArgument if the name is taken, empty, or has control characters
  void keep(const std::string& name, detail::KeptObject object, KeptScope scope);
  void save(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
            const SaveOptions& options = {});
  [[nodiscard]] SavedParts save_parts(const std::string& folder,
                                      const std::vector<torch::optim::Optimizer*>& optimizers,
                                      const AcceptParts& accept);
  void wait();
  /// Writes parameters and buffers alone to one safetensors file. See ParallelModule::export_weights.
  void export_weights(const std::string& file, std::optional<c10::ScalarType> dtype = std::nullopt);
  /// Loads a checkpoint. Before the first call, the file is opened and checked, and hyper-parameters and tensors that
  /// have memory are loaded. Tensors of a recorded construction, states of optimizers and counters are read from the
  /// opened file when the model is deployed. Later changes to what was loaded stay. Several loads are applied in their
  /// order.
  /// @return what is or will be loaded, equal on all ranks
  /// @throws CheckpointError, on every rank; model, optimizers and counters are then unchanged
  LoadReport load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
                  const LoadOptions& options = {});

 private:
  std::shared_ptr<session::Impl> impl_;
};

}  // namespace autopar
