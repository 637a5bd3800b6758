#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <torch/optim/optimizer.h>

#include <autopar/core/error.hpp>
#include <autopar/torch/parameter_collectives.hpp>

namespace autopar {

/// What a step reads besides the elements that it writes.
enum class StepNeeds : std::uint8_t {
  kElementWise,   ///< nothing: each element depends on its own gradient and state (SGD, Adam, Lion)
  kNorms,         ///< sums over one or all unsharded parameters: norms, dot products (LARS, LAMB, L-BFGS)
  kWholeMatrices  ///< unsharded parameters with their sizes (Muon, Shampoo)
};

/// Describes an optimizer: its state, its step counter, its options, and what its step needs. With a descriptor,
/// `model->attach(optimizer)` shards, offloads, saves and loads the optimizer under every plan. Make one with
/// `describe_optimizer`; an optimizer returns its descriptor as a DescribedOptimizer.
///
/// The state lies in `torch::optim::Optimizer::state()`, by parameter. It is made at a parameter's first step or when
/// the optimizer is constructed.
struct OptimizerDescriptor final {
  using Options = torch::optim::OptimizerOptions;
  using ParamState = torch::optim::OptimizerParamState;
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  enum class StateKind : std::uint8_t {
    kLikeParameter,  ///< one element for each element of the parameter; sharded like the parameter
    kCounter,        ///< an integer that grows with each step
    kScalar,         ///< a number
    kWhole           ///< a tensor with sizes independent of the sharding, the same on each rank that holds a part of
                     ///< the parameter
  };

  /// One entry, or one list of entries, in a parameter's state.
  struct StateEntry {
    std::string name;  ///< as in checkpoints; entries of a list are name_0, name_1, …
    StateKind kind = StateKind::kLikeParameter;
    /// The number of entries under a group's options, for a list the largest number. Null: one.
    std::function<std::int64_t(const Options&)> count{};
    bool is_list = false;  ///< a list may have fewer entries
    /// Undefined if there is none yet. Counters are int64, scalars f64, both 0-dim.
    std::function<at::Tensor(const ParamState&, std::size_t)> read{};
    std::function<void(ParamState&, std::size_t, const at::Tensor&)> write{};
    /// kWhole: the entry's sizes, from the sizes of the unsharded parameter.
    std::function<std::vector<std::int64_t>(at::IntArrayRef)> sizes{};

    [[nodiscard]] std::int64_t count_under(const Options& options) const { return count ? count(options) : 1; }
    [[nodiscard]] std::string name_of(std::size_t index) const {
      return is_list ? name + '_' + std::to_string(index) : name;
    }
  };

  /// The values that a hyper-parameter may have. A checkpoint with another value is refused.
  enum class Range : std::uint8_t { kFinite, kNotNegative, kBelowOne, kCount, kFlag };

  /// One option of a parameter group. All ranks must have equal values. Checkpoints contain it.
  struct HyperParameter {
    std::string name;
    Range range = Range::kFinite;
    std::function<double(const Options&)> read{};
    std::function<void(Options&, double)> write{};
  };

  std::string name;  ///< of the optimizer class, in checkpoints and messages
  StepNeeds needs = StepNeeds::kElementWise;
  std::function<std::unique_ptr<ParamState>()> make_state{};  ///< makes the empty state of one parameter; null: the
                                                              ///< optimizer keeps no state
  std::vector<StateEntry> state{};
  std::vector<HyperParameter> hyper_parameters{};
  /// The reason why a combination of individually valid values is invalid; empty if it is valid. Null: all are valid.
  std::function<std::string(const Options&)> conflict{};
  /// Temporary tensors of a step, in multiples of the parameters' size, for the planner's memory estimate.
  double temporaries = 0;
  /// Makes another optimizer for `model->gather_optimizer`. Null: gather_optimizer throws.
  std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&, const Options& defaults)> make{};
  /// Makes a state that throws InvalidArgument with this message when torch::save writes it. Null: torch::save
  /// succeeds.
  std::function<std::unique_ptr<ParamState>(std::string)> make_unsaveable{};
};

/// An optimizer with a descriptor. Derive from it and torch::optim::Optimizer, or from it and an existing optimizer.
class DescribedOptimizer {
 public:
  virtual ~DescribedOptimizer() = default;
  [[nodiscard]] virtual const OptimizerDescriptor& descriptor() const = 0;

  /// Called by `model->attach`.
  void set_collectives(std::shared_ptr<ParameterCollectives> collectives) { attached_ = std::move(collectives); }

 protected:
  DescribedOptimizer() = default;
  DescribedOptimizer(const DescribedOptimizer&) = default;
  DescribedOptimizer(DescribedOptimizer&&) = default;
  DescribedOptimizer& operator=(const DescribedOptimizer&) = default;
  DescribedOptimizer& operator=(DescribedOptimizer&&) = default;

  /// For steps that need norms or whole matrices. Works over all ranks once the optimizer is attached, and on unsharded
  /// parameters before.
  [[nodiscard]] ParameterCollectives& collectives();
  [[nodiscard]] bool is_attached() const { return attached_ != nullptr; }

 private:
  std::shared_ptr<ParameterCollectives> attached_, own_;
};

namespace detail {

/// A state that belongs to no parameter. It stops torch::save, since libtorch writes all entries of an optimizer's
/// state.
template <class State>
struct Unsaveable : State {
  explicit Unsaveable(std::string said) : message(std::move(said)) {}
  using State::serialize;
  void serialize(torch::serialize::OutputArchive&) const override { throw InvalidArgument(message); }
  std::string message;
};

}  // namespace detail

/// Describes an optimizer by the members of its options and state; see `describe_optimizer`. An accessor returns a
/// reference to a member. It is a pointer to a data member, a pointer to a function such as TORCH_ARG defines, or a
/// lambda.
template <class Optimizer, class OptionsClass, class StateClass>
class OptimizerDescription {
 public:
  using Descriptor = OptimizerDescriptor;
  using Kind = Descriptor::StateKind;
  using Range = Descriptor::Range;
  using Kept = std::function<bool(const OptionsClass&)>;

  OptimizerDescription(std::string name, StepNeeds needs) {
    made_.name = std::move(name);
    made_.needs = needs;
    if constexpr (!std::is_abstract_v<StateClass>) made_.make_state = [] { return std::make_unique<StateClass>(); };
    if constexpr (!std::is_final_v<StateClass>)
      made_.make_unsaveable = [](std::string said) -> std::unique_ptr<Descriptor::ParamState> {
        return std::make_unique<detail::Unsaveable<StateClass>>(std::move(said));
      };
    if constexpr (std::is_constructible_v<Optimizer, const Descriptor::Groups&, const OptionsClass&>)
      made_.make = [](const Descriptor::Groups& groups, const Descriptor::Options& defaults) {
        return std::make_unique<Optimizer>(groups, static_cast<const OptionsClass&>(defaults));
      };
  }
  operator OptimizerDescriptor() const { return made_; }  // NOLINT(google-explicit-constructor)

  // ---- state

  /// A tensor with one element for each element of the parameter.
  /// @param kept  the options under which the state has it; null: all
  OptimizerDescription& tensor(std::string name, at::Tensor& (StateClass::*access)(), Kept kept = nullptr) {
    return tensor_by(std::move(name), access, std::move(kept));
  }
  template <class Access>
  OptimizerDescription& tensor(std::string name, Access access, Kept kept = nullptr) {
    return tensor_by(std::move(name), access, std::move(kept));
  }
  /// A sequence of such tensors, at most `most`.
  /// @param access  of a std::vector or std::deque
  template <class Access>
  OptimizerDescription& tensors(std::string name, Access access,
                                std::function<std::int64_t(const OptionsClass&)> most) {
    auto& entry = add(std::move(name), Kind::kLikeParameter);
    entry.is_list = true;
    entry.count = [most](const Descriptor::Options& options) {
      return most(static_cast<const OptionsClass&>(options));
    };
    entry.read = [access](const Descriptor::ParamState& state, std::size_t index) {
      const auto& list = std::invoke(access, of(state));
      return index < list.size() ? list[index] : at::Tensor();
    };
    entry.write = [access](Descriptor::ParamState& state, std::size_t index, const at::Tensor& value) {
      auto& list = std::invoke(access, of(state));
      if (list.size() <= index) list.resize(index + 1);
      list[index] = value;
    };
    return *this;
  }
  /// An integer that counts steps.
  OptimizerDescription& counter(std::string name, std::int64_t& (StateClass::*access)()) {
    return number(std::move(name), access, Kind::kCounter);
  }
  template <class Access>
  OptimizerDescription& counter(std::string name, Access access) {
    return number(std::move(name), access, Kind::kCounter);
  }
  /// A number for each parameter.
  OptimizerDescription& scalar(std::string name, double& (StateClass::*access)()) {
    return number(std::move(name), access, Kind::kScalar);
  }
  template <class Access>
  OptimizerDescription& scalar(std::string name, Access access) {
    return number(std::move(name), access, Kind::kScalar);
  }
  /// A tensor with the parameter's element type. `sizes` returns its sizes from the sizes of the unsharded parameter.
  template <class Access>
  OptimizerDescription& whole(std::string name, Access access,
                              std::function<std::vector<std::int64_t>(at::IntArrayRef)> sizes) {
    tensor_by(std::move(name), access, nullptr);
    made_.state.back().kind = Kind::kWhole;
    made_.state.back().sizes = std::move(sizes);
    return *this;
  }

  // ---- options

  template <class Number>
  OptimizerDescription& option(std::string name, Number& (OptionsClass::*access)(), Range range = Range::kFinite) {
    return option_by(std::move(name), access, range);
  }
  template <class Access>
  OptimizerDescription& option(std::string name, Access access, Range range = Range::kFinite) {
    return option_by(std::move(name), access, range);
  }
  /// An option that is not a number itself.
  OptimizerDescription& option(std::string name, std::function<double(const OptionsClass&)> read,
                               std::function<void(OptionsClass&, double)> write, Range range) {
    made_.hyper_parameters.push_back(
        {std::move(name), range,
         [read](const Descriptor::Options& options) { return read(static_cast<const OptionsClass&>(options)); },
         [write](Descriptor::Options& options, double value) { write(static_cast<OptionsClass&>(options), value); }});
    return *this;
  }
  /// Refuses combinations of individually valid values.
  /// @param conflict  returns the reason, or an empty string
  OptimizerDescription& conflict(std::function<std::string(const OptionsClass&)> conflict) {
    made_.conflict = [conflict](const Descriptor::Options& options) {
      return conflict(static_cast<const OptionsClass&>(options));
    };
    return *this;
  }
  /// See OptimizerDescriptor::temporaries.
  OptimizerDescription& temporaries(double like_parameters) {
    made_.temporaries = like_parameters;
    return *this;
  }

 private:
  // Accessors return references to members, so reading needs a const_cast; readers do not write.
  static StateClass& of(const Descriptor::ParamState& state) {
    return const_cast<StateClass&>(static_cast<const StateClass&>(state));
  }
  static StateClass& of(Descriptor::ParamState& state) { return static_cast<StateClass&>(state); }

  Descriptor::StateEntry& add(std::string name, Kind kind) {
    made_.state.push_back({std::move(name), kind});
    return made_.state.back();
  }
  template <class Access>
  OptimizerDescription& tensor_by(std::string name, Access access, Kept kept) {
    auto& entry = add(std::move(name), Kind::kLikeParameter);
    if (kept) {
      entry.count = [kept](const Descriptor::Options& options) {
        return kept(static_cast<const OptionsClass&>(options)) ? 1 : 0;
      };
    }
    entry.read = [access](const Descriptor::ParamState& state, std::size_t) -> at::Tensor {
      return std::invoke(access, of(state));
    };
    entry.write = [access](Descriptor::ParamState& state, std::size_t, const at::Tensor& value) {
      std::invoke(access, of(state)) = value;
    };
    return *this;
  }
  template <class Access>
  OptimizerDescription& number(std::string name, Access access, Kind kind) {
    auto& entry = add(std::move(name), kind);
    entry.read = [access, kind](const Descriptor::ParamState& state, std::size_t) {
      const auto type = at::TensorOptions().dtype(kind == Kind::kCounter ? at::kLong : at::kDouble);
      return at::full({}, std::invoke(access, of(state)), type);
    };
    entry.write = [access](Descriptor::ParamState& state, std::size_t, const at::Tensor& value) {
      auto& member = std::invoke(access, of(state));
      member = value.item<std::remove_reference_t<decltype(member)>>();
    };
    return *this;
  }
  template <class Access>
  OptimizerDescription& option_by(std::string name, Access access, Range range) {
    made_.hyper_parameters.push_back({std::move(name), range,
                                      [access](const Descriptor::Options& options) {
                                        auto& own =
                                            const_cast<OptionsClass&>(static_cast<const OptionsClass&>(options));
                                        return static_cast<double>(std::invoke(access, own));
                                      },
                                      [access](Descriptor::Options& options, double value) {
                                        auto& member = std::invoke(access, static_cast<OptionsClass&>(options));
                                        member = static_cast<std::remove_reference_t<decltype(member)>>(value);
                                      }});
    return *this;
  }

  OptimizerDescriptor made_;
};

/// Starts the description of an optimizer class, to which its state and options are added:
///
///   const ap::OptimizerDescriptor& descriptor() const override {
///     static const ap::OptimizerDescriptor kAll =
///         ap::describe_optimizer<Lion, LionOptions, LionState>("Lion", ap::StepNeeds::kElementWise)
///             .tensor("exp_avg", &LionState::exp_avg)
///             .option("lr", &LionOptions::lr, ap::OptimizerDescriptor::Range::kNotNegative)
///             .option("beta1", [](LionOptions& o) -> double& { return std::get<0>(o.betas()); });
///     return kAll;
///   }
///
/// If Optimizer(groups, options) constructs an optimizer, `model->gather_optimizer` can make one.
template <class Optimizer, class Options, class State = torch::optim::OptimizerParamState>
[[nodiscard]] OptimizerDescription<Optimizer, Options, State> describe_optimizer(
    std::string name, StepNeeds needs = StepNeeds::kElementWise) {
  return {std::move(name), needs};
}

}  // namespace autopar
