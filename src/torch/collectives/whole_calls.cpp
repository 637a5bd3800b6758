#include "torch/collectives/whole_calls.hpp"

#include <exception>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include <autopar/core/error.hpp>

#include "torch/interpret/seeded_draws.hpp"
#include "torch/parameters/optimizer_state.hpp"

namespace autopar::collectives {

namespace {

/// Whether state has another layout than its parameter, as numbers that count steps have.
bool lies_otherwise(const torch::optim::Optimizer& optimizer, const std::string& state) {
  return parameters::state_slot(parameters::descriptor_of(optimizer), state).kind() !=
         parameters::StateKind::kLikeParameter;
}

bool has(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& each : group.params()) {
      if (each.is_same(parameter)) return true;
    }
  }
  return false;
}

/// Of the state of the optimizer that is the `number`th of a parameter, from 1.
std::string key_of(const std::string& state, int number) {
  return number == 1 ? state : state + "." + std::to_string(number);
}

/// Whether `tensors` are this rank's parts of a parameter.
void require_parts(const parameters::ManagedTensor& tensor, const std::vector<at::Tensor>& tensors,
                   std::int64_t elements) {
  if (tensors.size() > WholeParameters::kMostTensors) {
    throw InvalidArgument("for_whole_parameters: '" + tensor.name() + "' has " + std::to_string(tensors.size()) +
                          " tensors with its gradient and state; there may be " +
                          std::to_string(WholeParameters::kMostTensors) + ": attach fewer optimizers of one parameter");
  }
  for (const auto& part : tensors) {
    if (!part.defined() || part.numel() == elements) continue;
    std::ostringstream out;
    out << "for_whole_parameters: a tensor of sizes " << part.sizes() << " is given for parameter '" << tensor.name()
        << "', of which this rank has " << elements << " elements; give tensors of the handle's sizes";
    throw InvalidArgument(out.str());
  }
}

/// Calls a user's function on the tensors of a parameter: value, gradient, and state under `keys`.
void call_on_whole(const WholeParameterFunction& function, const std::string& name,
                   const std::vector<std::string>& keys, const WholeStates& counters, std::vector<at::Tensor>& whole) {
  auto states = counters;
  for (std::size_t k = 0; k < keys.size(); ++k) {
    if (whole[k + 2].defined()) states[keys[k]] = whole[k + 2];
  }
  const auto given = states;
  for (auto& [key, count] : states) {
    if (counters.contains(key)) count = count.clone();
  }
  function(name, whole[0], whole[1], states);
  const auto refuse = [&](const std::string& key, const std::string& what) {
    throw InvalidArgument("for_whole_parameters: the function " + what + " state '" + key + "' of '" + name +
                          "'; it may change values of state and gradients only: keep what else it needs beside the "
                          "optimizer");
  };
  for (const auto& [key, tensor] : states) {
    if (!given.contains(key)) refuse(key, "added");
  }
  for (const auto& [key, tensor] : given) {
    const auto left = states.find(key);
    if (left == states.end() || !left->second.defined()) refuse(key, "removed");
    const auto count = counters.find(key);
    if (count != counters.end() && !left->second.equal(count->second)) refuse(key, "changed the counter that is");
  }
  for (std::size_t k = 0; k < keys.size(); ++k) {
    if (whole[k + 2].defined()) whole[k + 2] = states.at(keys[k]);
  }
}

}  // namespace

void WholeCalls::run_alone(const std::vector<WholeParameters::Parts>& parts, std::size_t written,
                           const WholeParameters::Function& function) {
  auto& deployment = parts_.deployment;
  WholeParameters(parts_.ranks, deployment.wire(), deployment.group_of_all(), deployment.device(), parts_.parameters)
      .run(parts, written, [&](std::size_t i, std::vector<at::Tensor>& whole) {
        const auto alone = parts_.validator.alone();
        function(i, whole);
      });
}

void WholeCalls::run(const std::vector<at::Tensor>& handles, const std::vector<std::vector<at::Tensor>>& locals,
                     const WholeParameters::Function& function, std::size_t written) {
  std::vector<WholeParameters::Parts> parts;
  std::string names;
  std::exception_ptr error;
  try {
    expect(handles.size() == locals.size(), "for_whole_parameters: one list of tensors for each parameter");
    for (std::size_t i = 0; i < handles.size(); ++i) {
      const auto& tensor = parts_.parameters.of(handles[i]);
      if (parts_.parameters.holds(tensor))
        require_parts(tensor, locals[i], parts_.parameters.elements_here(tensor).size());
      parts.push_back({&tensor, locals[i]});
      names += tensor.name() + ' ';
    }
  } catch (const InvalidArgument&) {
    error = std::current_exception();
  }
  parts_.validator.agree(calls::CallKind::kWhole, names, error);
  run_alone(parts, written, function);
}

/// Value, gradient and state, but counters.
WholeParameters::Parts WholeCalls::parts_with_state(const parameters::ManagedTensor& tensor) const {
  WholeParameters::Parts parts{&tensor, {tensor.handle, tensor.handle.grad()}, {"value", "gradient"}};
  int number = 0;
  for (auto* optimizer : parts_.optimizers.all()) {
    if (!has(*optimizer, tensor.handle)) continue;
    ++number;
    const auto entries = parameters::state_of(*optimizer, tensor.handle);
    for (const auto& name : parameters::state_names(*optimizer, tensor.handle)) {
      if (lies_otherwise(*optimizer, name)) continue;
      const auto found = std::ranges::find(entries, name, &parameters::StateEntry::first);
      const bool is_of_list = parameters::state_slot(parameters::descriptor_of(*optimizer), name).entry->is_list;
      if (is_of_list && found == entries.end()) continue;
      parts.tensors.push_back(found == entries.end() ? at::Tensor() : found->second);
      parts.labels.push_back(key_of(name, number));
    }
  }
  return parts;
}

/// Equal on all ranks; different in each call.
interpret::RngKey WholeCalls::next_draws() {
  auto& [call, since] = last_;
  since = call == parts_.progress.calls ? since + 1 : 0;
  call = parts_.progress.calls;
  const interpret::RngSite site{OpId(std::numeric_limits<std::int32_t>::max()), since};
  return {interpret::philox_seed({parts_.progress.seed, static_cast<std::uint64_t>(call)}, site), 0};
}

void WholeCalls::run(const WholeParameterFunction& function) {
  std::vector<WholeParameters::Parts> parts;
  std::exception_ptr error;
  try {
    for (const auto& tensor : parts_.parameters.tensors()) {
      if (!tensor.is_parameter) continue;
      parts.push_back(parts_with_state(tensor));
      if (parts_.parameters.holds(tensor))
        require_parts(tensor, parts.back().tensors, parts_.parameters.elements_here(tensor).size());
    }
  } catch (const InvalidArgument&) {
    error = std::current_exception();
  }
  parts_.validator.agree(calls::CallKind::kWhole, "all parameters", error);
  const auto draws = next_draws();
  parts_.watches.steps().forget();  // others than the optimizers write their state
  run_alone(parts, std::numeric_limits<std::size_t>::max(), [&](std::size_t i, std::vector<at::Tensor>& whole) {
    const auto& tensor = *parts[i].tensor;
    const std::vector<std::string> keys(parts[i].labels.begin() + 2, parts[i].labels.end());
    WholeStates counters;
    int number = 0;
    for (auto* optimizer : parts_.optimizers.all()) {
      if (!has(*optimizer, tensor.handle)) continue;
      ++number;
      for (const auto& [name, value] : parameters::state_of(*optimizer, tensor.handle)) {
        if (lies_otherwise(*optimizer, name)) counters[key_of(name, number)] = value;
      }
    }
    const interpret::SeededGenerators seeded(parts_.deployment.device(), interpret::philox_seed(draws, {OpId::of(i)}));
    call_on_whole(function, tensor.name(), keys, counters, whole);
  });
}

}  // namespace autopar::collectives
