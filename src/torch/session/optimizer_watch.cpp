#include "torch/session/optimizer_watch.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include <torch/optim/optimizer.h>

#include "torch/parameters/hyper_parameters.hpp"
#include "torch/parameters/optimizer_state.hpp"
#include "torch/session/handshake.hpp"

namespace autopar {

namespace {

/// Grows with each step, which writes the tensors of its state in place; 0 while there is none.
std::uint64_t version_of_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  std::uint64_t version = 0;
  for (const auto& [name, tensor] : state_of(optimizer, parameter)) {
    if (tensor.defined() && tensor.is_floating_point()) version += 1 + static_cast<std::uint64_t>(tensor._version());
  }
  return version;
}

/// Of a whole parameter's first bytes.
std::uint64_t hash_of_values(const at::Tensor& parameter) {
  constexpr std::size_t kMost = 4096;
  return hash_bytes(parameter.const_data_ptr(), std::min(kMost, static_cast<std::size_t>(parameter.nbytes())));
}

std::uint64_t hash_of_options(const torch::optim::Optimizer& optimizer) {
  auto hash = hash_text(descriptor_of(optimizer).name);
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
    return std::ranges::any_of(other.parameters,
                               [&](const auto& entry) { return watched.parameters.contains(entry.first); });
  });
  watched_.push_back(std::move(watched));
}

std::uint64_t OptimizerWatch::look_at(const Watched& watched, const at::Tensor& parameter) {
  return watched.has_state ? version_of_state(*watched.optimizer, parameter) : hash_of_values(parameter);
}

void OptimizerWatch::note_gradient(const at::Tensor& handle, bool is_whole) {
  constexpr std::size_t kFew = 4;  // a loop may take away the gradients of some
  for (auto& watched : watched_) {
    const auto found = watched.parameters.find(handle.unsafeGetTensorImpl());
    if (found == watched.parameters.end()) continue;
    const auto& place = found->second;
    watched.noted += hash_bytes(&place.number, sizeof(place.number));  // ranks see them in different orders
    if (place.has_state && !std::exchange(watched.has_state, true)) watched.asked.clear();
    const bool tells = place.has_state || (is_whole && handle.is_cpu() && handle.is_contiguous());
    if (!tells || place.has_state != watched.has_state || watched.asked.size() == kFew) continue;
    watched.asked.push_back({handle, look_at(watched, handle)});
  }
}

std::array<OptimizerWatch::Seen, OptimizerWatch::kCompared> OptimizerWatch::look() {
  std::array<Seen, kCompared> seen;
  for (std::size_t k = 0; k < std::min(watched_.size(), kCompared); ++k) {
    auto& watched = watched_[k];
    const auto noted = std::exchange(watched.noted, 0);
    if (noted == 0) continue;
    seen[k] = {noted, Stepped::kUnknown, watched.has_state ? 1 : 0, hash_of_options(*watched.optimizer)};
    if (!watched.asked.empty()) {
      const bool stepped = std::ranges::any_of(
          watched.asked, [&](const Asked& asked) { return look_at(watched, asked.parameter) != asked.before; });
      seen[k].stepped = stepped ? Stepped::kYes : Stepped::kNo;
    }
    watched.asked.clear();
    watched.has_state = false;
  }
  return seen;
}

std::string OptimizerWatch::describe(std::size_t optimizer) const {
  const auto& watched = *watched_[optimizer].optimizer;
  std::ostringstream text;
  text.precision(17);
  text << descriptor_of(watched).name;
  const auto groups = hyper_parameters(watched);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups.size() > 1) text << "; group " << g;
    for (const auto& [name, value] : groups[g]) text << ", " << name << ' ' << value;
  }
  return text.str();
}

}  // namespace autopar
