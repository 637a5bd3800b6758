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

/// The module inside what a user calls a network.
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

/// The pointer to the module inside a Net, where it is no Net itself (neither directly nor by conversion).
template <class Pointer, class Net>
concept PointerInto = std::same_as<Pointer, std::shared_ptr<ContainedIn<Net>>> && !std::convertible_to<Pointer, Net>;

/// Something that makes a Net, or a pointer to one.
template <class F, class Net>
concept Factory = std::invocable<F&> &&
    (std::convertible_to<std::invoke_result_t<F&>, Net> || PointerInto<std::invoke_result_t<F&>, Net>);

/// Makes a Net and returns the module inside.
template <class Net, Factory<Net> F>
std::shared_ptr<ContainedIn<Net>> made_by(F& make) {
  if constexpr (PointerInto<std::invoke_result_t<F&>, Net>)
    return make();
  else
    return contained(Net(make()));
}

}  // namespace detail

/// While it lives, calls of the model accumulate gradients without reducing them (see AutoParallelImpl::no_sync).
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

/// A module that runs on all ranks of a world as the wrapped one would on one (see AutoParallel).
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

  /// @param model  a Net, a pointer into one or what makes one
  template <class Model>
  AutoParallelImpl(World& world, Model model, Options options, PlannerType planner)
      : AutoParallelImpl(world, taken(model, options), std::move(options), plan_function(std::move(planner))) {}

  /// One call on this rank's batch. Arguments and results: tensors, constants, and tuples, vectors, optionals, plain
  /// structs of them. Batched results are of this rank's samples, others the same on every rank. Collective.
  template <class... Args>
  auto forward(Args&&... args) {
    using Result = std::decay_t<decltype(module_->forward(std::forward<Args>(args)...))>;
    return run<Result>(
        pack(std::forward<Args>(args)...),
        [this](auto&... rebuilt) { return module_->forward(static_cast<Args&&>(rebuilt)...); }, "");
  }

  /// The loss of the results of `forward(inputs…)` against `targets`, with its backward: call `.backward()` on it.
  /// `loss(results, targets)` is captured as the end of forward, so any model runs in loss mode. It is a lambda, a
  /// module such as torch::nn::CrossEntropyLoss, or a function's name: torch::nn::functional::cross_entropy,
  /// torch::mse_loss; of overloaded ones AUTOPAR_FUNCTION(name). Collective.
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

  /// Any other method of the wrapped module, on this rank's batch, as `forward`: `model->call(&Net::decode, z)`. Of
  /// overloaded ones `static_cast<Tensor (Net::*)(const Tensor&)>(&Net::decode)` says which; a lambda that takes the
  /// module first is as good. It runs where forward runs; parameters that it does not read stay where they are.
  /// Collective.
  template <class Method, class... Args>
  requires(std::invocable<const Method&, Contained&, std::decay_t<Args>&...>) auto call(Method method, Args&&... args) {
    using Result = std::decay_t<std::invoke_result_t<const Method&, Contained&, std::decay_t<Args>&...>>;
    return run<Result>(
        pack(std::forward<Args>(args)...),
        [this, method](auto&... rebuilt) { return std::invoke(method, *module_, rebuilt...); },
        "call " + name_of(method) + " ", bytes_held_by(method));
  }

  // ---- parameters
  /// The original handles. This rank's have data; the others are placeholders: right sizes, no memory, never a
  /// gradient.
  [[nodiscard]] ParameterHandles parameters(bool recurse = true) const {
    return {torch::nn::Module::parameters(recurse),
            [session = session_](const auto&... arguments) { return session->clip_grad_norm(arguments...); }};
  }
  [[nodiscard]] bool owns(const at::Tensor& parameter) const { return session_->owns(parameter); }
  [[nodiscard]] std::vector<at::Tensor> owned_parameters() const { return session_->owned_parameters(); }
  /// Which elements of a parameter this rank holds: all, or under ZeRO its shard, or none.
  [[nodiscard]] ParameterShard shard(const at::Tensor& parameter) const { return session_->shard(parameter); }
  [[nodiscard]] std::int64_t parameter_count() const { return session_->parameter_count(); }
  /// The value of a parameter or buffer on every rank. Collective.
  [[nodiscard]] at::Tensor gather(const at::Tensor& parameter) { return session_->gather(parameter); }
  /// All parameters and buffers on rank 0, nothing elsewhere. Collective.
  [[nodiscard]] torch::OrderedDict<std::string, at::Tensor> gather_state() {
    torch::OrderedDict<std::string, at::Tensor> state;
    for (auto& [name, value] : session_->gather_state()) state.insert(name, value);
    return state;
  }

  /// The optimizer as one process would have it, on rank 0; null elsewhere. It is to be saved, with
  /// `torch::save(*whole, file)`, which `torch::load(optimizer, file)` of a program without autopar reads; it steps
  /// nothing. Collective.
  /// @throws InvalidArgument naming the class of an optimizer whose state is not known
  [[nodiscard]] std::unique_ptr<torch::optim::Optimizer> gather_optimizer(torch::optim::Optimizer& optimizer) {
    return session_->gather_optimizer(optimizer);
  }

  // ---- training
  /// Tells the planner what state the optimizer keeps, and allows it to hold parameters in shards (ZeRO) and on the
  /// host (offload). Each call compares how often ranks stepped it, and its hyper-parameters, so it must live as long
  /// as calls make gradients for its parameters, or until another optimizer of theirs is attached.
  /// @throws InvalidArgument naming the class of an optimizer whose state is not known
  void attach(torch::optim::Optimizer& optimizer) { session_->attach(optimizer); }
  /// Scales all gradients so that their norm over all ranks is at most `max_norm`; returns the norm before: 0-dim,
  /// equal on all ranks. As torch::nn::utils::clip_grad_norm_ does with parameters() of one process, parameters of two
  /// names count twice, and are scaled twice. Collective.
  /// @param norm_type  any positive number, or infinity
  /// @throws InvalidArgument, on every rank, if the norm is not finite and `error_if_nonfinite`; then nothing is scaled
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false) {
    return session_->clip_grad_norm(torch::nn::Module::parameters(), max_norm, norm_type, error_if_nonfinite);
  }
  /// The same of a part of the model: `model->module().encoder->parameters()`. Ranks that hold nothing of it, too, call
  /// it, with the same handles. @throws InvalidArgument, on every rank, if one is no parameter of this model
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& handles, double max_norm, double norm_type = 2.0,
                             bool error_if_nonfinite = false) {
    return session_->clip_grad_norm(handles, max_norm, norm_type, error_if_nonfinite);
  }
  /// The norm over all elements of a parameter or gradient, wherever they are: 0-dim f64, equal on all ranks. Of a
  /// gradient that this rank does not have, as it holds nothing of the parameter, pass the undefined tensor that
  /// `p.grad()` is; undefined everywhere, it is 0. Collective. @param ord  any positive number, or infinity
  /// @throws InvalidArgument, on every rank, where the ranks name different tensors
  [[nodiscard]] at::Tensor norm(const at::Tensor& part, double ord = 2.0) { return session_->norm({part}, ord); }
  /// The sum of the products of all elements of two such tensors of one parameter, likewise; one of the two may be of
  /// the user's own, with the handle's sizes (a momentum). Collective.
  [[nodiscard]] at::Tensor dot(const at::Tensor& a, const at::Tensor& b) { return session_->dot({a}, {b}); }
  /// Summed over two lists, in one exchange. If these are as long as parameters(), and in its order, both may be of the
  /// user's own.
  [[nodiscard]] at::Tensor dot(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    return session_->dot(a, b);
  }
  /// See autopar::for_whole_parameters. Collective.
  void for_whole_parameters(const WholeParameterFunction& function) { session_->for_whole_parameters(function); }
  /// Calls inside accumulate gradients on each rank; the next call outside, or sync_gradients(), reduces all of them.
  /// Under ZeRO 2 and 3 there is no room for whole gradients: each call sums into shards.
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
  /// Parameters, buffers, the optimizers' state and hyper-parameters; loads under any plan and number of ranks.
  template <std::derived_from<torch::optim::Optimizer>... Optimizers>
  void save(const std::string& folder, Optimizers&... optimizers) {
    session_->save(folder, {&optimizers...});
  }
  /// A checkpoint that is damaged, of another model or without an optimizer's state is a CheckpointError on every rank;
  /// then model and optimizers are as they were and training, or another load, may go on. Also before the first call:
  /// then hyper-parameters are loaded at once, and what is set or written afterwards stays, as in one process. Tensors
  /// that have no memory yet and the optimizers' state follow with the first call, from the file that was opened, so
  /// the optimizers must live until then; rank 0 reads the file twice. Several loads add up in their order. A `folder`
  /// that ends in .safetensors is the file itself: weights of another writer, such as torchvision's state_dict.
  template <std::derived_from<torch::optim::Optimizer>... Optimizers>
  void load(const std::string& folder, Optimizers&... optimizers) {
    session_->load(folder, {&optimizers...});
  }
  /// `model->load(folder, optimizer, {.optimizer = ap::Missing::kAllowed})`: weights alone, where the file has no more.
  void load(const std::string& folder, torch::optim::Optimizer& optimizer, const LoadOptions& options) {
    session_->load(folder, {&optimizer}, options);
  }
  void load(const std::string& folder, const std::vector<torch::optim::Optimizer*>& optimizers,
            const LoadOptions& options) {
    session_->load(folder, optimizers, options);
  }

  // ---- plan
  [[nodiscard]] const Plan& plan() const { return session_->plan(); }
  /// Captures, plans and deploys as a call with these arguments would, without running. Collective.
  template <class... Args>
  void prepare(Args&&... args) {
    auto [flat, forward] = bind<std::decay_t<decltype(module_->forward(std::forward<Args>(args)...))>>(
        pack(std::forward<Args>(args)...),
        [this](auto&... rebuilt) { return module_->forward(static_cast<Args&&>(rebuilt)...); }, "");
    session_->prepare(flat, forward);
  }
  /// Uses a plan made before, instead of planning at the first call. The same on every rank.
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
    std::shared_ptr<InitRecord> init{};  ///< of what was made here
  };
  template <class Model>
  static Taken taken(Model& model, const Options& options) {
    if constexpr (std::convertible_to<Model, Net>) {
      return {detail::contained(Net(std::move(model)))};
    } else if constexpr (detail::PointerInto<Model, Net>) {
      return {std::move(model)};
    } else {
      Taken made;
      // Nobody asks for the numbers of a model that is only planned.
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
    torch::nn::Module::train(base.is_training());  // before there are children, which may be in another mode
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
      return PlanFunction([](const auto&... problem) { return plan_with_defaults(problem...); });
    } else {
      return plan_function(PlannerType{});
    }
  }
  static PlanFunction plan_function(PlannerType planner) {
    return
        [planner = std::move(planner)](const ModelProfile& profile, const ProfiledCost& costs, const Cluster& cluster,
                                       const PlanRequest& request, const PlanObserver& observer) {
          auto observed = planner;
          if constexpr (requires { observed.observer = observer; }) observed.observer = observer;
          return observed.plan(profile, costs, cluster, request);
        };
  }

  template <class... Args>
  static auto pack(Args&&... args) {
    return std::tuple<std::decay_t<Args>...>(std::forward<Args>(args)...);
  }

  /// The arguments, taken apart, and the user's code as a function of their tensors.
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

  /// Equal on all ranks: pointers, also to members, are numbered in the order of their first use.
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

  /// What a lambda has captured by value.
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

/// Trains an unmodified libtorch module on all ranks of a world, exactly as on one.
///
/// Each rank calls it with its own batch; the global batch is their concatenation in rank order. The first call
/// captures the forward pass, plans stages, replicas and micro-batches, and deploys the parameters. Constructed from a
/// Net, or from a callable that returns one, which never allocates parameters of other ranks. All calls are collective:
/// every rank makes the same ones in the same order.
///
/// @tparam Net          a torch::nn::Module class, its holder (TORCH_MODULE), torch::nn::Sequential, or a shared_ptr
/// @tparam PlannerType  Planner with the policies to plan with; needs <autopar/plan/planner.hpp>, which the default,
/// compiled
///                      once in the library, does not
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

  /// Plans with this planner and its policies' knobs: `Planner{MyStaging{.width = 8}}`.
  /// @param model  as above
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
