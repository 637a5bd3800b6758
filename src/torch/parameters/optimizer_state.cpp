#include "torch/parameters/optimizer_state.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <typeinfo>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <autopar/core/error.hpp>
#include <autopar/torch/optim/lamb.hpp>

#include "torch/parameters/part_mark.hpp"

namespace autopar {

namespace {

at::Tensor counter(std::int64_t value) { return at::full({}, value, at::TensorOptions().dtype(at::kLong)); }

/// One member of a state class: how it is read and written; a tensor that is undefined does not exist.
template <class State>
struct Entry {
  const char* name;
  std::function<at::Tensor(const State&)> read;
  std::function<void(State&, const at::Tensor&)> write;
};

template <class State>
Entry<State> tensor_entry(const char* name, const at::Tensor& (State::*read)() const, at::Tensor& (State::*write)()) {
  return {name, [read](const State& state) { return (state.*read)(); },
          [write](State& state, const at::Tensor& value) { (state.*write)() = value; }};
}

template <class State>
Entry<State> step_entry() {
  return {"step", [](const State& state) { return counter(state.step()); },
          [](State& state, const at::Tensor& value) { state.step(value.item<std::int64_t>()); }};
}

#define AUTOPAR_TENSOR_ENTRY(State, member) tensor_entry<State>(#member, &State::member, &State::member)

template <class State>
const std::vector<Entry<State>>& entries();

template <>
const std::vector<Entry<torch::optim::SGDParamState>>& entries() {
  static const std::vector<Entry<torch::optim::SGDParamState>> all{
      AUTOPAR_TENSOR_ENTRY(torch::optim::SGDParamState, momentum_buffer)};
  return all;
}
template <>
const std::vector<Entry<torch::optim::AdamParamState>>& entries() {
  static const std::vector<Entry<torch::optim::AdamParamState>> all{
      step_entry<torch::optim::AdamParamState>(), AUTOPAR_TENSOR_ENTRY(torch::optim::AdamParamState, exp_avg),
      AUTOPAR_TENSOR_ENTRY(torch::optim::AdamParamState, exp_avg_sq),
      AUTOPAR_TENSOR_ENTRY(torch::optim::AdamParamState, max_exp_avg_sq)};
  return all;
}
template <>
const std::vector<Entry<torch::optim::AdamWParamState>>& entries() {
  static const std::vector<Entry<torch::optim::AdamWParamState>> all{
      step_entry<torch::optim::AdamWParamState>(), AUTOPAR_TENSOR_ENTRY(torch::optim::AdamWParamState, exp_avg),
      AUTOPAR_TENSOR_ENTRY(torch::optim::AdamWParamState, exp_avg_sq),
      AUTOPAR_TENSOR_ENTRY(torch::optim::AdamWParamState, max_exp_avg_sq)};
  return all;
}
template <>
const std::vector<Entry<torch::optim::RMSpropParamState>>& entries() {
  static const std::vector<Entry<torch::optim::RMSpropParamState>> all{
      step_entry<torch::optim::RMSpropParamState>(), AUTOPAR_TENSOR_ENTRY(torch::optim::RMSpropParamState, square_avg),
      AUTOPAR_TENSOR_ENTRY(torch::optim::RMSpropParamState, momentum_buffer),
      AUTOPAR_TENSOR_ENTRY(torch::optim::RMSpropParamState, grad_avg)};
  return all;
}
template <>
const std::vector<Entry<torch::optim::AdagradParamState>>& entries() {
  static const std::vector<Entry<torch::optim::AdagradParamState>> all{
      step_entry<torch::optim::AdagradParamState>(), AUTOPAR_TENSOR_ENTRY(torch::optim::AdagradParamState, sum)};
  return all;
}
template <>
const std::vector<Entry<optim::LAMBParamState>>& entries() {
  static const std::vector<Entry<optim::LAMBParamState>> all{step_entry<optim::LAMBParamState>(),
                                                             AUTOPAR_TENSOR_ENTRY(optim::LAMBParamState, exp_avg),
                                                             AUTOPAR_TENSOR_ENTRY(optim::LAMBParamState, exp_avg_sq)};
  return all;
}

#undef AUTOPAR_TENSOR_ENTRY

/// State of no parameter: libtorch writes all entries of an optimizer's state.
template <class State>
struct Unsaveable : State {
  explicit Unsaveable(std::string said) : message(std::move(said)) {}
  using State::serialize;
  void serialize(torch::serialize::OutputArchive&) const override { throw InvalidArgument(message); }
  std::string message;
};
constexpr char kNoParameter = 0;  // its address is the key of such an entry

template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> made(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                              const torch::optim::OptimizerOptions& defaults) {
  return std::make_unique<Optimizer>(groups, static_cast<const Options&>(defaults));
}

/// Calls `body` with the state class of the optimizer as a null pointer of that type.
template <class Body>
auto with_state_class(const torch::optim::Optimizer& optimizer, Body body) {
  switch (optimizer_kind(optimizer)) {
    case OptimizerKind::kSgd:
      return body(static_cast<torch::optim::SGDParamState*>(nullptr));
    case OptimizerKind::kAdam:
      return body(static_cast<torch::optim::AdamParamState*>(nullptr));
    case OptimizerKind::kAdamW:
      return body(static_cast<torch::optim::AdamWParamState*>(nullptr));
    case OptimizerKind::kRmsProp:
      return body(static_cast<torch::optim::RMSpropParamState*>(nullptr));
    case OptimizerKind::kLamb:
      return body(static_cast<optim::LAMBParamState*>(nullptr));
    case OptimizerKind::kAdagrad:
      break;
  }
  return body(static_cast<torch::optim::AdagradParamState*>(nullptr));
}

const torch::optim::OptimizerOptions& options_for(const torch::optim::Optimizer& optimizer,
                                                  const at::Tensor& parameter) {
  for (const auto& group : optimizer.param_groups()) {
    const auto holds = [&](const at::Tensor& other) { return other.is_same(parameter); };
    if (std::any_of(group.params().begin(), group.params().end(), holds)) return group.options();
  }
  throw InvalidArgument("the optimizer does not hold this parameter");
}

std::vector<std::string> adam_names(bool amsgrad) {
  std::vector<std::string> names{"step", "exp_avg", "exp_avg_sq"};
  if (amsgrad) names.emplace_back("max_exp_avg_sq");
  return names;
}

std::vector<std::string> names_under(OptimizerKind kind, const torch::optim::OptimizerOptions& options) {
  switch (kind) {
    case OptimizerKind::kSgd:
      if (static_cast<const torch::optim::SGDOptions&>(options).momentum() != 0) return {"momentum_buffer"};
      return {};
    case OptimizerKind::kAdam:
      return adam_names(static_cast<const torch::optim::AdamOptions&>(options).amsgrad());
    case OptimizerKind::kAdamW:
      return adam_names(static_cast<const torch::optim::AdamWOptions&>(options).amsgrad());
    case OptimizerKind::kRmsProp: {
      std::vector<std::string> names{"step", "square_avg"};
      const auto& rms = static_cast<const torch::optim::RMSpropOptions&>(options);
      if (rms.momentum() > 0) names.emplace_back("momentum_buffer");
      if (rms.centered()) names.emplace_back("grad_avg");
      return names;
    }
    case OptimizerKind::kLamb:
      return adam_names(false);
    case OptimizerKind::kAdagrad:
      break;
  }
  return {"step", "sum"};
}

}  // namespace

OptimizerKind optimizer_kind(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) return OptimizerKind::kSgd;
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) return OptimizerKind::kAdam;
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) return OptimizerKind::kAdamW;
  if (dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr) return OptimizerKind::kRmsProp;
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr) return OptimizerKind::kAdagrad;
  if (dynamic_cast<const optim::LAMB*>(&optimizer) != nullptr) return OptimizerKind::kLamb;
  throw InvalidArgument("the optimizer " + c10::demangle(typeid(optimizer).name()) +
                        " is not supported: its state is not known; use torch::optim::SGD, Adam, AdamW, RMSprop or "
                        "Adagrad, or autopar::optim::SGD, Adam, AdamW or LAMB");
}

const char* name_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return "SGD";
    case OptimizerKind::kAdam:
      return "Adam";
    case OptimizerKind::kAdamW:
      return "AdamW";
    case OptimizerKind::kRmsProp:
      return "RMSprop";
    case OptimizerKind::kLamb:
      return "LAMB";
    case OptimizerKind::kAdagrad:
      break;
  }
  return "Adagrad";
}

double state_factor(const torch::optim::Optimizer& optimizer) {
  const auto kind = optimizer_kind(optimizer);
  std::ptrdiff_t most = 0;
  for (const auto& group : optimizer.param_groups()) {
    const auto names = names_under(kind, group.options());
    most = std::max(most, std::count_if(names.begin(), names.end(), [](const auto& name) { return name != "step"; }));
  }
  return static_cast<double>(most);
}

std::vector<std::string> state_names(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  return names_under(optimizer_kind(optimizer), options_for(optimizer, parameter));
}

std::vector<std::string> state_names(const torch::optim::Optimizer& optimizer,
                                     const torch::optim::OptimizerOptions& options) {
  return names_under(optimizer_kind(optimizer), options);
}

std::vector<StateEntry> state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  return with_state_class(optimizer, [&]<class State>(State*) {
    const auto& state = static_cast<const State&>(*found->second);
    std::vector<StateEntry> out;
    for (const auto& entry : entries<State>()) {
      if (auto value = entry.read(state); value.defined()) out.emplace_back(entry.name, std::move(value));
    }
    return out;
  });
}

void set_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const std::vector<StateEntry>& given) {
  with_state_class(optimizer, [&]<class State>(State*) {
    auto state = std::make_unique<State>();
    for (const auto& [name, value] : given) {
      const auto& known = entries<State>();
      const auto entry = std::find_if(known.begin(), known.end(), [&](const auto& each) { return name == each.name; });
      if (entry == known.end()) {
        throw CheckpointError(std::string("the optimizer state '") + name + "' is none of " +
                              name_of(optimizer_kind(optimizer)) + "'s");
      }
      mark_like(value, parameter);
      entry->write(*state, value);
    }
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    return 0;
  });
}

void refuse_to_save(torch::optim::Optimizer& optimizer, const std::string& message) {
  with_state_class(optimizer, [&]<class State>(State*) {
    optimizer.state()[const_cast<char*>(&kNoParameter)] = std::make_unique<Unsaveable<State>>(message);
    return 0;
  });
}

std::unique_ptr<torch::optim::Optimizer> same_optimizer(const torch::optim::Optimizer& optimizer) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& group : optimizer.param_groups()) {
    std::vector<at::Tensor> placeholders;
    for (const auto& parameter : group.params()) {
      placeholders.push_back(at::empty({0}, at::TensorOptions().dtype(parameter.scalar_type())));
    }
    groups.emplace_back(std::move(placeholders), group.options().clone());
  }
  const auto& defaults = optimizer.defaults();
  auto same = [&] {
    switch (optimizer_kind(optimizer)) {
      case OptimizerKind::kSgd:
        return made<torch::optim::SGD, torch::optim::SGDOptions>(groups, defaults);
      case OptimizerKind::kAdam:
        return made<torch::optim::Adam, torch::optim::AdamOptions>(groups, defaults);
      case OptimizerKind::kAdamW:
        return made<torch::optim::AdamW, torch::optim::AdamWOptions>(groups, defaults);
      case OptimizerKind::kRmsProp:
        return made<torch::optim::RMSprop, torch::optim::RMSpropOptions>(groups, defaults);
      case OptimizerKind::kLamb:
        return made<optim::LAMB, optim::LAMBOptions>(groups, defaults);
      case OptimizerKind::kAdagrad:
        break;
    }
    return made<torch::optim::Adagrad, torch::optim::AdagradOptions>(groups, defaults);
  }();
  same->state().clear();  // what some make when they are made
  return same;
}

}  // namespace autopar
