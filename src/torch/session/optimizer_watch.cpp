#include "torch/session/optimizer_watch.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <autopar/torch/hyper_parameters.hpp>
#include <autopar/torch/optim/lamb.hpp>
#include <autopar/torch/optimizer_state.hpp>

#include "torch/session/handshake.hpp"

namespace autopar {

namespace {

std::unordered_set<const void*> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> all;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) all.insert(parameter.unsafeGetTensorImpl());
  }
  return all;
}

/// SGD's momentum is written in place by each step but the first, which makes it.
std::int64_t counted(const torch::optim::SGDParamState& state) {
  const auto& momentum = state.momentum_buffer();
  return momentum.defined() ? static_cast<std::int64_t>(momentum._version()) + 1 : 0;
}

template <class State>
std::int64_t counted(const State& state) {
  return state.step();
}

template <class State>
std::int64_t most_counted(const torch::optim::Optimizer& optimizer) {
  std::int64_t most = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    if (const auto* known = dynamic_cast<const State*>(state.get())) most = std::max(most, counted(*known));
  }
  return most;
}

/// Grows with each step; 0 while there is no state.
std::int64_t steps_counted(const torch::optim::Optimizer& optimizer) {
  switch (optimizer_kind(optimizer)) {
    case OptimizerKind::kSgd: return most_counted<torch::optim::SGDParamState>(optimizer);
    case OptimizerKind::kAdam: return most_counted<torch::optim::AdamParamState>(optimizer);
    case OptimizerKind::kAdamW: return most_counted<torch::optim::AdamWParamState>(optimizer);
    case OptimizerKind::kRmsProp: return most_counted<torch::optim::RMSpropParamState>(optimizer);
    case OptimizerKind::kLamb: return most_counted<optim::LAMBParamState>(optimizer);
    case OptimizerKind::kAdagrad: break;
  }
  return most_counted<torch::optim::AdagradParamState>(optimizer);
}

std::uint64_t hash_of_options(const torch::optim::Optimizer& optimizer) {
  auto hash = hash_text(name_of(optimizer_kind(optimizer)));
  for (const auto& group : hyper_parameters(optimizer)) {
    for (const auto& [name, value] : group) hash = hash_bytes(&value, sizeof(value), hash);
  }
  return hash;
}

}  // namespace

void OptimizerWatch::watch(torch::optim::Optimizer& optimizer) {
  auto parameters = parameters_of(optimizer);
  std::erase_if(watched_, [&](const Watched& other) {
    return std::ranges::any_of(other.parameters, [&](const void* parameter) { return parameters.contains(parameter); });
  });
  watched_.push_back({&optimizer, std::move(parameters)});
  watched_.back().counted = steps_counted(optimizer);
}

void OptimizerWatch::note_gradient(const at::Tensor& handle) {
  for (auto& watched : watched_) {
    watched.had_gradients = watched.had_gradients || watched.parameters.contains(handle.unsafeGetTensorImpl());
  }
}

std::array<OptimizerWatch::Seen, OptimizerWatch::kCompared> OptimizerWatch::look() {
  std::array<Seen, kCompared> seen;
  for (std::size_t k = 0; k < std::min(watched_.size(), kCompared); ++k) {
    auto& watched = watched_[k];
    if (!std::exchange(watched.had_gradients, false)) continue;
    seen[k] = {1, -1, hash_of_options(*watched.optimizer)};
    if (state_factor(*watched.optimizer) == 0) continue;
    const auto now = steps_counted(*watched.optimizer);
    seen[k].steps = now - std::exchange(watched.counted, now);
  }
  return seen;
}

std::string OptimizerWatch::describe(std::size_t optimizer) const {
  const auto& watched = *watched_[optimizer].optimizer;
  std::ostringstream text;
  text.precision(17);
  text << name_of(optimizer_kind(watched));
  const auto groups = hyper_parameters(watched);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups.size() > 1) text << "; group " << g;
    for (const auto& [name, value] : groups[g]) text << ", " << name << ' ' << value;
  }
  return text.str();
}

}  // namespace autopar
