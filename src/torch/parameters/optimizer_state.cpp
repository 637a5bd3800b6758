#include "torch/parameters/optimizer_state.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <typeinfo>

#include <ATen/ops/empty.h>
#include <c10/util/Type.h>
#include <c10/util/accumulate.h>
#include <torch/optim/lbfgs.h>

#include <autopar/core/error.hpp>

#include "torch/parameters/part_mark.hpp"

namespace autopar::parameters {

namespace {

constexpr char kNoParameter = 0;  // its address is the key of state that belongs to no parameter

const torch::optim::OptimizerOptions& options_for(const torch::optim::Optimizer& optimizer,
                                                  const at::Tensor& parameter) {
  for (const auto& group : optimizer.param_groups()) {
    const auto holds = [&](const at::Tensor& other) { return other.is_same(parameter); };
    if (std::any_of(group.params().begin(), group.params().end(), holds)) return group.options();
  }
  throw InvalidArgument("the optimizer does not hold this parameter");
}

/// Elements of unsharded state for each element of a group's parameters.
double whole_share(const OptimizerDescriptor& descriptor, const torch::optim::OptimizerParamGroup& group) {
  std::int64_t elements = 0, kept = 0;
  for (const auto& parameter : group.params()) {
    elements += parameter.numel();
    for (const auto& entry : descriptor.state) {
      if (entry.kind == StateKind::kWhole && entry.count_under(group.options()) > 0)
        kept += c10::multiply_integers(entry.sizes(parameter.sizes()));
    }
  }
  return elements == 0 ? 0 : static_cast<double>(kept) / static_cast<double>(elements);
}

}  // namespace

const OptimizerDescriptor& descriptor_of(const torch::optim::Optimizer& optimizer) {
  if (const auto* described = dynamic_cast<const DescribedOptimizer*>(&optimizer)) return described->descriptor();
  if (const auto* known = known_descriptor(optimizer)) return *known;
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw InvalidArgument(
        "the optimizer torch::optim::LBFGS is not supported: it takes dot products of whole parameters, of which ranks "
        "hold parts; use autopar::optim::LBFGS, which has the same options and takes the same steps");
  }
  throw InvalidArgument("the optimizer " + c10::demangle(typeid(optimizer).name()) +
                        " is not supported: its state is not known; use torch::optim::SGD, Adam, AdamW, RMSprop or "
                        "Adagrad, or autopar::optim::SGD, Adam, AdamW, LAMB, LARS, Muon or LBFGS, or let it derive "
                        "from autopar::DescribedOptimizer and describe its state");
}

double state_factor(const torch::optim::Optimizer& optimizer, int copies_of_whole) {
  const auto& descriptor = descriptor_of(optimizer);
  double most = 0;
  for (const auto& group : optimizer.param_groups()) {
    double factor = descriptor.temporaries + copies_of_whole * whole_share(descriptor, group);
    for (const auto& entry : descriptor.state) {
      if (entry.kind == StateKind::kLikeParameter) factor += static_cast<double>(entry.count_under(group.options()));
    }
    most = std::max(most, factor);
  }
  return most;
}

std::vector<StateSlot> state_slots(const torch::optim::Optimizer& optimizer,
                                   const torch::optim::OptimizerOptions& options) {
  std::vector<StateSlot> slots;
  for (const auto& entry : descriptor_of(optimizer).state) {
    const auto count = entry.count_under(options);
    for (std::int64_t i = 0; i < count; ++i) slots.push_back({&entry, static_cast<std::size_t>(i)});
  }
  return slots;
}

std::vector<std::string> state_names(const torch::optim::Optimizer& optimizer,
                                     const torch::optim::OptimizerOptions& options) {
  std::vector<std::string> names;
  for (const auto& slot : state_slots(optimizer, options)) names.push_back(slot.name());
  return names;
}

std::vector<std::string> state_names(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  return state_names(optimizer, options_for(optimizer, parameter));
}

StateSlot state_slot(const OptimizerDescriptor& descriptor, const std::string& name) {
  for (const auto& entry : descriptor.state) {
    if (!entry.is_list) {
      if (entry.name == name) return {&entry, 0};
      continue;
    }
    if (!name.starts_with(entry.name + '_')) continue;
    std::size_t index = 0;
    const auto* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + entry.name.size() + 1, end, index);
    if (error == std::errc() && stop == end) return {&entry, index};
  }
  return {};
}

std::vector<StateEntry> state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end() || found->second == nullptr) return {};
  std::vector<StateEntry> out;
  for (const auto& entry : descriptor_of(optimizer).state) {
    for (std::size_t i = 0; i == 0 || entry.is_list; ++i) {
      auto value = entry.read(*found->second, i);
      if (!value.defined()) break;
      out.emplace_back(entry.name_of(i), std::move(value));
    }
  }
  return out;
}

at::Tensor state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const std::string& name) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end() || found->second == nullptr) return {};
  const auto slot = state_slot(descriptor_of(optimizer), name);
  return slot.entry == nullptr ? at::Tensor() : slot.entry->read(*found->second, slot.index);
}

void set_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const std::vector<StateEntry>& given) {
  const auto& descriptor = descriptor_of(optimizer);
  auto state = descriptor.make_state ? descriptor.make_state() : nullptr;
  for (const auto& [name, value] : given) {
    const auto slot = state_slot(descriptor, name);
    if (slot.entry == nullptr || state == nullptr) {
      throw CheckpointError(std::string("the optimizer state '") + name + "' is none of " + descriptor.name + "'s");
    }
    if (slot.entry->kind == OptimizerDescriptor::StateKind::kLikeParameter) mark_like(value, parameter);
    slot.entry->write(*state, slot.index, value);
  }
  if (state != nullptr) optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
}

void refuse_to_save(torch::optim::Optimizer& optimizer, const std::string& message) {
  const auto& descriptor = descriptor_of(optimizer);
  if (!descriptor.make_unsaveable) return;
  optimizer.state()[const_cast<char*>(&kNoParameter)] = descriptor.make_unsaveable(message);
}

bool refuses_to_save(torch::optim::Optimizer& optimizer) {
  return optimizer.state().count(const_cast<char*>(&kNoParameter)) > 0;
}

void allow_to_save(torch::optim::Optimizer& optimizer) { optimizer.state().erase(const_cast<char*>(&kNoParameter)); }

std::unique_ptr<torch::optim::Optimizer> same_optimizer(const torch::optim::Optimizer& optimizer) {
  const auto& descriptor = descriptor_of(optimizer);
  if (!descriptor.make) {
    throw InvalidArgument("the descriptor of " + descriptor.name +
                          " has no way to make another one (OptimizerDescriptor::make); give the class a constructor "
                          "of groups and options, or use model->save(folder, optimizer)");
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& group : optimizer.param_groups()) {
    std::vector<at::Tensor> placeholders;
    for (const auto& parameter : group.params()) {
      placeholders.push_back(at::empty({0}, at::TensorOptions().dtype(parameter.scalar_type())));
    }
    groups.emplace_back(std::move(placeholders), group.options().clone());
  }
  auto same = descriptor.make(groups, optimizer.defaults());
  same->state().clear();  // some optimizers make state when they are constructed
  return same;
}

}  // namespace autopar::parameters
