#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <autopar/capture/flatten.hpp>
#include <autopar/capture/init_record.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/torch/device.hpp>
#include <autopar/torch/loss_function.hpp>
#include <autopar/torch/parameter_handles.hpp>
#include <autopar/torch/session.hpp>

namespace autopar {

template <class... Policies>
class Planner;  // plan/planner.hpp

namespace detail {

/// The pointer to the module that a Net is, holds or points to.
template <class Net>
auto contained(Net net) {
  if constexpr (kIsInstance<Net, std::shared_ptr>) {
    return net;
  } else if constexpr (requires { net.ptr(); }) {
    return net.ptr();
  } else {
    static_assert(std::derived_from<Net, torch::nn::Module>,
                  "autopar: Net must be a torch::nn::Module, its holder (TORCH_MODULE), or a shared_ptr to one");
    return std::make_shared<Net>(std::move(net));
  }
}

template <class Net>
using ContainedIn = typename decltype(contained(std::declval<Net>()))::element_type;

/// A pointer to the wrapped module that is not itself convertible to a Net.
template <class Pointer, class Net>
concept PointerInto = std::same_as<Pointer, std::shared_ptr<ContainedIn<Net>>> && !std::convertible_to<Pointer, Net>;

/// A callable that returns a Net or a pointer to the wrapped module.
template <class F, class Net>
concept Factory = std::invocable<F&> &&
    (std::convertible_to<std::invoke_result_t<F&>, Net> || PointerInto<std::invoke_result_t<F&>, Net>);

/// Calls `make` and returns the pointer to the wrapped module.
template <class Net, Factory<Net> F>
std::shared_ptr<ContainedIn<Net>> made_by(F& make) {
  if constexpr (PointerInto<std::invoke_result_t<F&>, Net>)
    return make();
  else
    return contained(Net(make()));
}

}  // namespace detail

/// While a NoSyncGuard lives, calls of the model accumulate gradients without reducing them. See
/// AutoParallelImpl::no_sync.
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

/// A module that runs on all ranks of a world as the wrapped module would run in one process. See AutoParallel.
template <class Net, class PlannerType>
class AutoParallelImpl : public torch::nn::Module {
 public:
  using Contained = detail::ContainedIn<Net>;

  AutoParallelImpl(World& world, Net net, Options options = {})
      : AutoParallelImpl(world, taken(net, options), std::move(options), plan_function()) {}

  template <detail::PointerInto<Net> Pointer>
  AutoParallelImpl(World& world, Pointer net, Options options = {})
      : AutoParallelImpl(world, taken(net, options), std::move(options), plan_function()) {}

  template <detail::Factory<Net> F>
  AutoParallelImpl(World& world, F make, Options options = {})
      : AutoParallelImpl(world, taken(make, options), std::move(options), plan_function()) {}

  /// @param model  a Net, a pointer to the wrapped module, or a callable that returns either
  template <class Model>
  AutoParallelImpl(World& world, Model model, Options options, PlannerType planner)
      : AutoParallelImpl(world, taken(model, options), std::move(options), plan_function(std::move(planner))) {}

  /// Runs the wrapped module's forward on this rank's batch. Collective.
  ///
  /// Arguments and results are tensors, constants, and tuples, vectors, optionals and plain structs of these. Batched
  /// results hold this rank's samples; all other results are the same on every rank.
  template <class... Args>
  auto forward(Args&&... args) {
    using Result = std::decay_t<decltype(module_->forward(std::forward<Args>(args)...))>;
    return run<Result>(
        pack(std::forward<Args>(args)...),
        [this](auto&... rebuilt) { return module_->forward(static_cast<Args&&>(rebuilt)...); }, "");
  }

  /// The loss of `forward(inputs…)` against `targets`; call `.backward()` on the result. Collective.
  ///
  /// `loss(results, targets)` is captured as the end of forward. So any model runs in loss mode, in which forward and
  /// backward are pipelined. `loss` is a lambda, a module such as torch::nn::CrossEntropyLoss, or a function's name,
  /// such as torch::nn::functional::cross_entropy or torch::mse_loss. For an overloaded function pass
  /// AUTOPAR_FUNCTION(name).
  /// @param inputs  one tensor, or a tuple of forward's arguments
  template <class Loss, class Inputs, class Targets>
  at::Tensor train_step(const Loss& loss, const Inputs& inputs, const Targets& targets) {
    auto arguments = [&] {
      if constexpr (detail::kIsInstance<Inputs, std::tuple>)
        return inputs;
      else
        return std::tuple<Inputs>(inputs);
    }();
    const auto body = [&](auto& rebuilt, auto& rebuilt_targets) {
      auto results = std::apply([&](auto&... each) { return module_->forward(each...); }, rebuilt);
      return detail::call_loss(loss, results, rebuilt_targets);
    };
    return run<at::Tensor>(std::tuple(std::move(arguments), targets), body, "train_step " + name_of(loss) + " ",
                           bytes_held_by(loss));
  }

  /// Runs any other method of the wrapped module on this rank's batch, as `forward` does:
  /// `model->call(&Net::decode, z)`. Collective.
  ///
  /// Select an overload with `static_cast<Tensor (Net::*)(const Tensor&)>(&Net::decode)`, or pass a lambda that takes
  /// the module first. The method runs on the ranks that run forward. Parameters that it does not read are not moved.
  template <class Method, class... Args>
  requires(std::invocable<const Method&, Contained&, std::decay_t<Args>&...>) auto call(Method method, Args&&... args) {
    using Result = std::decay_t<std::invoke_result_t<const Method&, Contained&, std::decay_t<Args>&...>>;
    return run<Result>(
        pack(std::forward<Args>(args)...),
        [this, method](auto&... rebuilt) { return std::invoke(method, *module_, rebuilt...); },
        "call " + name_of(method) + " ", bytes_held_by(method));
  }

  // ---- parameters
  /// The handles that the module was constructed with. Handles of parameters that this rank owns have data. The others
  /// are placeholders: they have sizes, no memory and never a gradient.
  [[nodiscard]] ParameterHandles parameters(bool recurse = true) const {
    return {torch::nn::Module::parameters(recurse),
            [session = session_](const auto&... arguments) { return session->clip_grad_norm(arguments...); }};
  }
  [[nodiscard]] bool owns(const at::Tensor& parameter) const { return session_->owns(parameter); }
  [[nodiscard]] std::vector<at::Tensor> owned_parameters() const { return session_->owned_parameters(); }
  /// The elements of a parameter that this rank holds: all, its shard (under ZeRO), or none.
  [[nodiscard]] ParameterShard shard(const at::Tensor& parameter) const { return session_->shard(parameter); }
  [[nodiscard]] std::int64_t parameter_count() const { return session_->parameter_count(); }
  /// The unsharded value of a parameter or buffer, on every rank. Collective.
  [[nodiscard]] at::Tensor gather(const at::Tensor& parameter) { return session_->gather(parameter); }
  /// All parameters and buffers on rank 0; an empty dictionary on other ranks. Collective.
  [[nodiscard]] torch::OrderedDict<std::string, at::Tensor> gather_state() {
    torch::OrderedDict<std::string, at::Tensor> state;
    for (auto& [name, value] : session_->gather_state()) state.insert(name, value);
    return state;
  }

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
  void zero_grad(bool set_to_none = true) override {
    session_->drop_accumulated();
    torch::nn::Module::zero_grad(set_to_none);
  }
  void train(bool on = true) override {
    torch::nn::Module::train(on);
    module_->train(on);
  }

  // ---- files. Collective.
  /// Saves parameters, buffers, and the optimizers' state and hyper-parameters. The checkpoint loads under any plan and
  /// number of ranks.
  template <std::derived_from<torch::optim::Optimizer>... Optimizers>
  void save(const std::string& folder, Optimizers&... optimizers) {
    session_->save(folder, {&optimizers...});
  }
  /// In another format than the default: `model->save(folder, optimizer, {.format = ap::single_file()})`.
  void save(const std::string& folder, torch::optim::Optimizer& optimizer, const SaveOptions& options) {
    session_->save(folder, {&optimizer}, options);
  }
  void save(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
            const SaveOptions& options) {
    session_->save(folder, optimizers, options);
  }
  /// Loads a checkpoint. A `folder` that ends in .safetensors is a file with the weights of another writer, such as
  /// torchvision's state_dict.
  ///
  /// Before the first call of the model, hyper-parameters are loaded at once; later changes to them stay, as in one
  /// process. The optimizers' state, and tensors that have no memory yet, are read at the first call from the file
  /// opened here. So the optimizers must live until then. Rank 0 reads the file twice. Several loads are applied in
  /// their order.
  /// @throws CheckpointError, on every rank, if the checkpoint is damaged, is of another model or lacks an optimizer's
  /// state. Model and optimizers are then unchanged, and training or another load may follow.
  template <std::derived_from<torch::optim::Optimizer>... Optimizers>
  void load(const std::string& folder, Optimizers&... optimizers) {
    session_->load(folder, {&optimizers...});
  }
  /// Loads weights alone if the checkpoint has no optimizer state:
  /// `model->load(folder, optimizer, {.optimizer = ap::Missing::kAllowed})`.
  void load(const std::string& folder, torch::optim::Optimizer& optimizer, const LoadOptions& options) {
    session_->load(folder, {&optimizer}, options);
  }
  void load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
            const LoadOptions& options) {
    session_->load(folder, optimizers, options);
  }

  // ---- plan
  [[nodiscard]] const Plan& plan() const { return session_->plan(); }
  /// Captures, plans and deploys as a call with these arguments would, but runs nothing. Collective.
  template <class... Args>
  void prepare(Args&&... args) {
    auto [flat, forward] = bind<std::decay_t<decltype(module_->forward(std::forward<Args>(args)...))>>(
        pack(std::forward<Args>(args)...),
        [this](auto&... rebuilt) { return module_->forward(static_cast<Args&&>(rebuilt)...); }, "");
    session_->prepare(flat, forward);
  }
  /// Deploys an existing plan instead of planning at the first call. Pass the same plan on every rank.
  void deploy(Plan plan) { session_->deploy(std::move(plan)); }
  void recapture() { session_->recapture(); }
  [[nodiscard]] const SessionStats& stats() const { return session_->stats(); }
  [[nodiscard]] Contained& module() { return *module_; }
  [[nodiscard]] const Contained& module() const { return *module_; }

  // ---- refused by name instead of inherited by accident
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& = std::nullopt) const override {
    throw InvalidArgument(
        "clone: an AutoParallel model cannot be cloned, its parameters live on several ranks; use "
        "gather_state() and construct another one");
  }
  void save(torch::serialize::OutputArchive&) const override {
    throw InvalidArgument("torch::save: no rank has all parameters of an AutoParallel model; use model->save(folder)");
  }
  void load(torch::serialize::InputArchive&) override {
    throw InvalidArgument("torch::load: no rank has all parameters of an AutoParallel model; use model->load(folder)");
  }
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    to(dtype, non_blocking);
    to(device, non_blocking);
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    if (session_->deployed()) {
      throw InvalidArgument(
          "to(dtype): the model is deployed and its plan depends on its types; convert the module "
          "before the first call");
    }
    torch::nn::Module::to(dtype, non_blocking);
  }
  void to(torch::Device device, bool = false) override {
    const auto own = session_->deployed() ? session_->device() : autopar::device(session_->world());
    if (device.type() == own.type() && (!device.has_index() || device == own)) return;
    throw InvalidArgument("to(" + device.str() + "): this rank's device is " + own.str() +
                          "; choose devices with Options::device, the model moves there by itself");
  }
  void pretty_print(std::ostream& stream) const override {
    stream << "autopar::AutoParallel(" << module_->name() << ")";
  }

 private:
  struct Taken {
    std::shared_ptr<Contained> module;
    std::shared_ptr<InitRecord> init{};  ///< the construction, if it was recorded here
  };
  template <class Model>
  static Taken taken(Model& model, const Options& options) {
    if constexpr (std::convertible_to<Model, Net>) {
      return {detail::contained(Net(std::move(model)))};
    } else if constexpr (detail::PointerInto<Model, Net>) {
      return {std::move(model)};
    } else {
      Taken made;
      // A model that is only planned never needs its random initial values.
      const auto drawing = Session::only_plans(options) ? Drawing::kAtMaterialisation : Drawing::kAtOnce;
      auto init = InitRecord::record([&] { made.module = detail::made_by<Net>(model); }, drawing);
      made.init = std::make_shared<InitRecord>(std::move(init));
      return made;
    }
  }

  AutoParallelImpl(World& world, Taken taken, Options&& options, PlanFunction planner)
      : torch::nn::Module("AutoParallel"), module_(std::move(taken.module)) {
    expect(module_ != nullptr, "AutoParallel: the module is null; construct it first");
    const torch::nn::Module& base = *module_;
    torch::nn::Module::train(base.is_training());  // set before the children exist, whose mode may differ
    for (const auto& item : base.named_parameters(false)) {
      register_parameter(item.key(), item.value(), item.value().requires_grad());
    }
    for (const auto& item : base.named_buffers(false)) register_buffer(item.key(), item.value());
    for (const auto& item : base.named_children()) register_module(item.key(), item.value());
    const std::span members(reinterpret_cast<const std::byte*>(module_.get()), sizeof(Contained));
    session_ = std::make_shared<Session>(world, module_, std::move(options), std::move(planner), std::move(taken.init),
                                         members);
  }

  static PlanFunction plan_function() {
    if constexpr (std::same_as<PlannerType, Planner<>>) {
      return PlanFunction([](const auto&... problem) { return try_plan_with_defaults(problem...); });
    } else {
      return plan_function(PlannerType{});
    }
  }
  static PlanFunction plan_function(PlannerType planner) {
    return
        [planner = std::move(planner)](const ModelProfile& profile, const ProfiledCost& costs, const Cluster& cluster,
                                       const PlanRequest& request, const PlanObserver& observer) -> PlanOutcome {
          auto observed = planner;
          if constexpr (requires { observed.observer = observer; }) observed.observer = observer;
          if constexpr (requires { observed.try_plan(profile, costs, cluster, request); })
            return observed.try_plan(profile, costs, cluster, request);
          else
            return observed.plan(profile, costs, cluster, request);
        };
  }

  template <class... Args>
  static auto pack(Args&&... args) {
    return std::tuple<std::decay_t<Args>...>(std::forward<Args>(args)...);
  }

  /// The flattened arguments, and the user's code as a function of their tensors.
  template <class Result, class Arguments, class Body>
  static auto bind(Arguments arguments, Body body, const std::string& purpose) {
    static_assert(Flattenable<Result>,
                  "autopar: forward must return tensors, constants (numbers, enums, strings) or tuples, pairs, arrays, "
                  "vectors, maps, optionals and plain structs of these");
    auto flat = autopar::flatten(arguments);
    flat.structure = purpose + flat.structure;
    ForwardFunction forward = [arguments = std::move(arguments), body](const std::vector<at::Tensor>& tensors) {
      auto rebuilt = with_tensors(arguments, tensors);
      Result result = std::apply(body, rebuilt);
      auto results = autopar::flatten(result).tensors;
      auto prototype = std::make_shared<Result>(with_tensors(result, std::vector<at::Tensor>(results.size())));
      return CallResult{std::move(results), std::move(prototype)};
    };
    return std::pair(std::move(flat), std::move(forward));
  }

  template <class Result, class Arguments, class Body>
  Result run(Arguments arguments, Body body, const std::string& purpose, std::string beside = {}) {
    auto [flat, forward] = bind<Result>(std::move(arguments), std::move(body), purpose);
    flat.beside = std::move(beside);
    const auto result = session_->call(flat, forward);
    return with_tensors(*static_cast<const Result*>(result.prototype.get()), result.tensors);
  }

  /// A name that is equal on all ranks: pointers, also to members, are numbered in the order of their first use.
  template <class Function>
  std::string name_of(const Function& function) {
    using Pointer = std::decay_t<Function>;
    std::string name = typeid(Function).name();
    if constexpr (std::is_pointer_v<Pointer> || std::is_member_function_pointer_v<Pointer>) {
      const Pointer pointer = function;
      std::string bytes(sizeof(pointer), '\0');
      std::memcpy(bytes.data(), &pointer, sizeof(pointer));
      name += "#" + std::to_string(functions_.try_emplace(name + bytes, functions_.size()).first->second);
    }
    return name;
  }

  /// The bytes that a lambda has captured by value.
  template <class Loss>
  static std::string bytes_held_by(const Loss& loss) {
    if constexpr (std::is_class_v<Loss> && !std::is_empty_v<Loss>) {
      return {reinterpret_cast<const char*>(std::addressof(loss)), sizeof(Loss)};
    } else {
      return {};
    }
  }

  std::shared_ptr<Contained> module_;
  std::shared_ptr<Session> session_;
  std::map<std::string, std::size_t> functions_;
};

/// Trains an unmodified libtorch module on all ranks of a world, with the results of one process.
///
/// Each rank calls the model with its own batch; the global batch is their concatenation in rank order. The first call
/// captures the forward pass, plans stages, replicas and micro-batches, and deploys the parameters. If it is
/// constructed from a callable that returns a Net, a rank never allocates parameters that other ranks own. All calls
/// are collective: every rank makes the same calls in the same order.
///
/// @tparam Net  a torch::nn::Module class, its holder (TORCH_MODULE), torch::nn::Sequential, or a shared_ptr
/// @tparam PlannerType  a Planner with the policies to plan with. Other planners than the default need
/// <autopar/plan/planner.hpp>; the default is compiled once, in the library.
template <class Net, class PlannerType = Planner<>>
class AutoParallel : public torch::nn::ModuleHolder<AutoParallelImpl<Net, PlannerType>> {
 public:
  using Impl = AutoParallelImpl<Net, PlannerType>;

  AutoParallel(World& world, Net net, Options options = {})
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(world, std::move(net), std::move(options))) {}

  template <detail::PointerInto<Net> Pointer>
  AutoParallel(World& world, Pointer net, Options options = {})
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(world, std::move(net), std::move(options))) {}

  template <detail::Factory<Net> F>
  AutoParallel(World& world, F make, Options options = {})
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(world, std::move(make), std::move(options))) {}

  /// Plans with this planner and the parameters of its policies: `Planner{MyStaging{.width = 8}}`.
  /// @param model  a Net, a pointer to the wrapped module, or a callable that returns either
  template <class Model>
  AutoParallel(World& world, Model model, Options options, PlannerType planner)
      : torch::nn::ModuleHolder<Impl>(
            std::make_shared<Impl>(world, std::move(model), std::move(options), std::move(planner))) {}

  /// See AutoParallelImpl::forward.
  template <class... Args>
  auto operator()(Args&&... args) {
    return this->get()->forward(std::forward<Args>(args)...);
  }
};

}  // namespace autopar
