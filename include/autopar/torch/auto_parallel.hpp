#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <autopar/capture/flatten.hpp>
#include <autopar/capture/init_record.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/torch/loss_function.hpp>
#include <autopar/torch/parallel_module.hpp>
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

/// A module that runs on all ranks of a world as the wrapped module would run in one process. See AutoParallel.
template <class Net, class PlannerType>
class AutoParallelImpl : public ParallelModule {
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

  /// Captures, plans and deploys as a call with these arguments would, but runs nothing. Collective.
  template <class... Args>
  void prepare(Args&&... args) {
    auto [flat, forward] = bind<std::decay_t<decltype(module_->forward(std::forward<Args>(args)...))>>(
        pack(std::forward<Args>(args)...),
        [this](auto&... rebuilt) { return module_->forward(static_cast<Args&&>(rebuilt)...); }, "");
    session().prepare(flat, forward);
  }
  [[nodiscard]] Contained& module() { return *module_; }
  [[nodiscard]] const Contained& module() const { return *module_; }

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
      made.init = record([&] { made.module = detail::made_by<Net>(model); }, options);
      return made;
    }
  }

  AutoParallelImpl(World& world, Taken taken, Options&& options, PlanFunction planner)
      : ParallelModule(world, taken.module, std::move(options), std::move(planner), std::move(taken.init),
                       {reinterpret_cast<const std::byte*>(taken.module.get()), sizeof(Contained)}),
        module_(std::move(taken.module)) {}

  static PlanFunction plan_function() {
    if constexpr (std::same_as<PlannerType, Planner<>>) {
      return try_plan_with_defaults;
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
    const auto result = session().call(flat, forward);
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
      name += "#" + std::to_string(number_of(name + bytes));
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
