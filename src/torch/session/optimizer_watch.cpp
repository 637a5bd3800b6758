#include "torch/session/optimizer_watch.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include <torch/optim/optimizer.h>

#include <autopar/torch/hyper_parameters.hpp>
#include <autopar/torch/optimizer_state.hpp>

#include "torch/session/handshake.hpp"

namespace autopar {

namespace {

/// Grows with each step, which writes the tensors of its state in place; 0 while there is none.
std::int64_t version_of_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  std::int64_t version = 0;
  for (const auto& [name, tensor] : state_of(optimizer, parameter)) {
    if (tensor.defined() && tensor.is_floating_point()) version += 1 + static_cast<std::int64_t>(tensor._version());
  }
  return version;
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
  Watched watched{&optimizer, {}};
  for (const auto& group : optimizer.param_groups()) {
    const bool has_state = !state_names(optimizer, group.options()).empty();
    for (const auto& parameter : group.params())
      watched.parameters.try_emplace(parameter.unsafeGetTensorImpl(), Place{watched.parameters.size(), has_state});
  }
  std::erase_if(watched_, [&](const Watched& other) {
    return std::ranges::any_of(other.parameters, [&](const auto& entry) { return watched.parameters.contains(entry.first); });
  });
  watched_.push_back(std::move(watched));
}

void OptimizerWatch::note_gradient(const at::Tensor& handle) {
  for (auto& watched : watched_) {
    const auto found = watched.parameters.find(handle.unsafeGetTensorImpl());
    if (found == watched.parameters.end()) continue;
    const auto& place = found->second;
    watched.noted = hash_bytes(&place.number, sizeof(place.number), watched.noted + 1);
    if (watched.asked.defined() || !place.has_state) continue;
    watched.asked = handle;
    watched.before = version_of_state(*watched.optimizer, handle);
  }
}

std::array<OptimizerWatch::Seen, OptimizerWatch::kCompared> OptimizerWatch::look() {
  std::array<Seen, kCompared> seen;
  for (std::size_t k = 0; k < std::min(watched_.size(), kCompared); ++k) {
    auto& watched = watched_[k];
    const auto noted = std::exchange(watched.noted, 0);
    if (noted == 0) continue;
    seen[k] = {1, Stepped::kUnknown, noted, hash_of_options(*watched.optimizer)};
    const auto asked = std::exchange(watched.asked, at::Tensor());
    if (!asked.defined()) continue;
    seen[k].stepped = version_of_state(*watched.optimizer, asked) != watched.before ? Stepped::kYes : Stepped::kNo;
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
