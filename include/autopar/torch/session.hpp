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
#include <autopar/plan/observer.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/torch/load_options.hpp>

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

/// Tensors of a result, and the result that they belong to, as the capture saw it (see with_tensors).
struct CallResult {
  std::vector<at::Tensor> tensors;
  std::shared_ptr<const void> prototype;
};

/// The user's forward on other tensors in place of the flattened arguments.
using ForwardFunction = std::function<CallResult(const std::vector<at::Tensor>&)>;

/// State of a parameter by its name in the optimizer ("exp_avg"); that of a second optimizer of the same parameter has
/// ".2" behind it.
using WholeStates = std::map<std::string, at::Tensor>;
/// Work on one whole parameter: see for_whole_parameters.
using WholeParameterFunction =
    std::function<void(const std::string& name, at::Tensor& value, at::Tensor& grad, WholeStates& states)>;

using PlanFunction = std::function<Plan(const ModelProfile&, const ProfiledCost&, const Cluster&, const PlanRequest&,
                                        const PlanObserver&)>;

/// Captures that are kept, those called last: of each argument signature and mode there is one, and a call whose own is
/// not among them captures again. So a number that is another in each call does not fill the memory.
inline constexpr std::size_t kRememberedPrograms = 64;

/// Figures of the calls so far, on this rank.
struct SessionStats {
  std::int64_t calls = 0;           ///< of forward
  std::int64_t captures = 0;        ///< of forward, for argument signatures and modes that were new, stale or forgotten
  std::int64_t microbatches = 0;    ///< of the last call
  std::int64_t global_samples = 0;  ///< of the last call, over all ranks
  std::int64_t replayed = 0;        ///< calls whose work on the device was a recording's (Options::cuda_graphs)
  std::int64_t losses_not_finite = 0;  ///< of training calls: NaN or infinite; on GPUs as far as they have arrived
  Seconds planning{};                  ///< first capture, plan and deployment
  Seconds last_call{};                 ///< forward, and in loss mode backward, of the last call
  double loss_scale = 1;               ///< of the next call; other than 1 with precision = fp16 only
  std::int64_t skipped_steps = 0;      ///< of which no rank has gradients, because fp16 overflowed on some
};

/// What a rank holds of a parameter or buffer.
struct ParameterShard {
  std::vector<std::int64_t> sizes;  ///< of the whole
  std::int64_t begin = 0;           ///< first element here, counted in the whole's memory order
  std::int64_t end = 0;             ///< behind the last
  bool whole = true;                ///< held whole, with its own sizes; else the handle's data and `.grad` are flat
  int dim = -1;                     ///< tensor parallel: they are a slice along this dim instead; -1: they are not
  /// Of such a slice, the indices of `dim` that are here: ranges [first, second), several of fused projections. `begin`
  /// and `end` are 0 where its elements do not follow one another in the whole's memory.
  std::vector<std::pair<std::int64_t, std::int64_t>> indices{};
  /// ZeRO among the replicas of such a slice: elements [first, second) of it, counted in its own memory order, are
  /// here, flat. Nothing: all of it is, with its own sizes.
  std::optional<std::pair<std::int64_t, std::int64_t>> of_slice{};
};

/// Drives one model on all ranks: captures, plans and deploys it at the first call, then runs every call and applies
/// its gradients. The type-erased half of AutoParallel; every member marked collective is called by all ranks in one
/// order.
class Session {
 public:
  /// @param init     the recorded construction when `module` is made of placeholders; null when its values are there
  /// @param members  the bytes of `module` as an object: a change of them is a reason to verify its captures
  Session(World& world, std::shared_ptr<torch::nn::Module> module, Options code, PlanFunction planner,
          std::shared_ptr<InitRecord> init, std::span<const std::byte> members = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Whether a model with these options, and those of the process, is planned and never run. False where the options
  /// are wrong, as the first call says on all ranks.
  [[nodiscard]] static bool only_plans(const Options& code);

  /// One call of the model. Collective.
  [[nodiscard]] CallResult call(const Flattened& arguments, const ForwardFunction& forward);
  /// Plans and deploys without running. Collective.
  void prepare(const Flattened& arguments, const ForwardFunction& forward);
  /// Uses this plan instead of making one; before the first call. Collective: the same plan on every rank.
  void deploy(Plan plan);
  /// Forgets all captures; the next call of each kind captures again and keeps the parameters where they are.
  void recapture();

  /// @throws InvalidArgument before the first call, deploy or prepare
  [[nodiscard]] const Plan& plan() const;
  [[nodiscard]] bool deployed() const;
  [[nodiscard]] const SessionStats& stats() const;
  [[nodiscard]] c10::Device device() const;
  [[nodiscard]] World& world();

  // ---- parameters
  [[nodiscard]] bool owns(const at::Tensor& handle) const;
  [[nodiscard]] std::vector<at::Tensor> owned_parameters() const;
  [[nodiscard]] std::int64_t parameter_count() const;  ///< elements, tied tensors once
  /// What this rank holds of a parameter or buffer; nothing where it is a placeholder. @pre deployed
  [[nodiscard]] ParameterShard shard(const at::Tensor& handle) const;
  /// For what needs whole matrices. `locals` [i] are tensors of this rank's layout of parameter `handles` [i]: its
  /// value, its gradient, state of an optimizer; each may be undefined, then on all its holders. They are assembled on
  /// one of the holders, `function` (i, whole) is called there, and the first `written` of them go back into all
  /// holders' tensors, in place. `function` may write to the whole tensors or put others of the same form in their
  /// place. Ranks run side by side, each in the order of `handles`; where it throws, all ranks throw, and this
  /// parameter is as it was. Memory: at most twice the largest parameter with its tensors. All ranks name the same
  /// parameters in the same order, those of other ranks too, whose `locals` are not looked at. Collective. @pre
  /// deployed
  /// @throws InvalidArgument on every rank where holders disagree about which tensors there are
  void for_whole_parameters(const std::vector<at::Tensor>& handles, const std::vector<std::vector<at::Tensor>>& locals,
                            const std::function<void(std::size_t i, std::vector<at::Tensor>& whole)>& function,
                            std::size_t written = static_cast<std::size_t>(-1));
  /// The same for all parameters of the model with their gradients and the state that attached optimizers keep.
  /// @throws InvalidArgument, on every rank, where the function adds, removes or resizes something
  void for_whole_parameters(const WholeParameterFunction& function);
  /// The value on every rank. Collective.
  [[nodiscard]] at::Tensor gather(const at::Tensor& handle);
  /// All parameters and buffers by name on rank 0, nothing elsewhere. Collective.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> gather_state();
  /// An optimizer of the same class with the same options and whole state on rank 0, null elsewhere. Collective.
  [[nodiscard]] std::unique_ptr<torch::optim::Optimizer> gather_optimizer(torch::optim::Optimizer& optimizer);

  // ---- training
  void attach(torch::optim::Optimizer& optimizer);
  /// The norm over all elements of these parameters and gradients, wherever they are; 0-dim f64, equal on all ranks.
  /// A rank that has no gradient, as it holds nothing of the parameter, passes an undefined tensor. Collective.
  /// @throws InvalidArgument, on every rank, where the ranks name different tensors
  [[nodiscard]] at::Tensor norm(const std::vector<at::Tensor>& tensors, double ord);
  /// The sum of products of all elements, likewise; c128 of complex parameters. Of two tensors one may be the user's
  /// own, of the handle's sizes; both may be in lists of as many tensors as the module has parameters, in that order.
  [[nodiscard]] at::Tensor dot(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);
  /// The norm before clipping of the gradients of these parameters, each as often as it is given. Collective.
  [[nodiscard]] at::Tensor clip_grad_norm(const std::vector<at::Tensor>& handles, double max_norm, double norm_type,
                                          bool error_if_nonfinite);
  void set_accumulating(bool accumulating);
  [[nodiscard]] bool accumulating() const;
  /// Reduces what was accumulated and adds it to `.grad`. Collective.
  void sync_gradients();
  /// Drops what was accumulated and not yet reduced.
  void drop_accumulated();

  // ---- files. Collective.
  void save(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers);
  /// A CheckpointError, on every rank, leaves model, optimizers and counters as they were. Before the first call the
  /// file is opened and checked, and hyper-parameters and tensors that have memory are loaded at once; tensors of a
  /// recorded construction, state of optimizers and counters follow from the opened file when the model is deployed.
  /// What is set or written after a load stays. Several loads add up in their order.
  void load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
            const LoadOptions& options = {});

 private:
  std::shared_ptr<session::Impl> impl_;
};

}  // namespace autopar
