#include "torch/calls/optimizer_watch.hpp"

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/optimizer.h>

#include "torch/calls/handshake.hpp"
#include "torch/parameters/hyper_parameters.hpp"
#include "torch/parameters/optimizer_state.hpp"

namespace autopar::calls {

namespace {

std::uint64_t hash_of_options(const torch::optim::Optimizer& optimizer) {
  auto hash = hash_text(parameters::descriptor_of(optimizer).name);
  for (const auto& group : parameters::hyper_parameters(optimizer)) {
    for (const auto& [name, value] : group) hash = hash_bytes(&value, sizeof(value), hash);
  }
  return hash;
}

bool has_history(const at::Tensor& tensor) { return torch::autograd::impl::get_autograd_meta(tensor) != nullptr; }

/// The memory of a dense tensor, without what guards shards.
at::Tensor memory_at(const at::Tensor& tensor) {
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), {tensor.numel()},
                       at::TensorOptions().dtype(tensor.scalar_type()).device(tensor.device()));
}

double epsilon_of(at::ScalarType type) {
  if (type == at::kDouble) return std::numeric_limits<double>::epsilon();
  if (type == at::kFloat) return std::numeric_limits<float>::epsilon();
  return type == at::kHalf ? 0x1p-10 : 0x1p-7;
}

/// Of several parameters of one rank: a step passes over some.
std::int64_t most_telling(std::int64_t a, std::int64_t b) {
  if (a >= 0 || b >= 0) return std::max(a, b);
  for (const auto each : {OptimizerWatch::kSome, OptimizerWatch::kNone}) {
    if (a == each || b == each) return each;
  }
  return OptimizerWatch::kUnknown;
}

}  // namespace

void OptimizerWatch::watch(torch::optim::Optimizer& optimizer) {
  Watched watched{&optimizer, {}};
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    for (const auto& parameter : optimizer.param_groups()[g].params())
      watched.parameters.try_emplace(parameter.unsafeGetTensorImpl(), Place{watched.parameters.size(), g});
  }
  std::erase_if(watched_, [&](const Watched& other) {
    return std::ranges::any_of(other.parameters,
                               [&](const auto& entry) { return watched.parameters.contains(entry.first); });
  });
  watched_.push_back(std::move(watched));
}

// ---------------------------------------------------------------- before

void OptimizerWatch::note_gradient(const at::Tensor& handle, bool is_whole) {
  constexpr std::size_t kFew = 4, kFewSamples = 2;  // a loop may take away the gradients of some
  for (auto& watched : watched_) {
    const auto found = watched.parameters.find(handle.unsafeGetTensorImpl());
    if (found == watched.parameters.end()) continue;
    const auto& place = found->second;
    watched.noted += hash_bytes(&place.number, sizeof(place.number));  // ranks see them in different orders
    const auto& options = watched.optimizer->param_groups()[place.group].options();
    const bool has_state = !parameters::state_names(*watched.optimizer, options).empty();
    if (has_state && !std::exchange(watched.has_state, true)) watched.asked.clear();
    const bool is_asked =
        std::ranges::any_of(watched.asked, [&](const Asked& asked) { return asked.handle.is_same(handle); });
    const bool is_full = watched.asked.size() >= (has_state ? kFew : kFewSamples);
    if (has_state != watched.has_state || is_full || is_asked || !handle.grad().defined()) continue;
    Asked asked{handle, handle.grad(), is_whole, !has_history(handle.grad()), false, {}, {}};
    if (has_state)
      asked.mark = parameters::step_mark(*watched.optimizer, handle);
    else
      take_sample(watched, place, asked);
    if (has_state || asked.sample.places.defined()) watched.asked.push_back(std::move(asked));
  }
}

// Of the first elements those with the largest gradients: the others' updates may be lost in rounding.
void OptimizerWatch::take_sample(const Watched& watched, const Place& place, Asked& asked) {
  constexpr std::int64_t kLookedAt = 1024, kElements = 8;
  const auto &handle = asked.handle, &gradient = asked.gradient;
  const bool is_alike = handle.is_floating_point() && handle.is_non_overlapping_and_dense() &&
                        gradient.layout() == at::kStrided && handle.sizes() == gradient.sizes() &&
                        handle.strides() == gradient.strides() && handle.scalar_type() == gradient.scalar_type() &&
                        handle.device() == gradient.device();
  const auto update =
      parameters::plain_update(*watched.optimizer, watched.optimizer->param_groups()[place.group].options());
  if (!is_alike || handle.numel() == 0 || !update) return;
  const at::NoGradGuard no_grad;
  const auto first = memory_at(gradient).narrow(0, 0, std::min(kLookedAt, handle.numel())).to(at::kFloat).abs();
  asked.sample.places = std::get<1>(first.topk(std::min(kElements, first.numel())));
  asked.sample.before = memory_at(handle).index_select(0, asked.sample.places);
  asked.sample.update = *update;
}

void OptimizerWatch::note_zeroing() {
  for (auto& watched : watched_) {
    for (auto& asked : watched.asked) asked.zeroed = asked.zeroed || asked.handle.grad().defined();
  }
}

void OptimizerWatch::forget() {
  for (auto& watched : watched_) {
    watched.asked.clear();
    watched.leaving.clear();
    watched.later = {};
  }
}

// ---------------------------------------------------------------- after

/// Whether a parameter had a gradient until all steps were made. A loop that takes gradients away says nothing of
/// steps.
bool OptimizerWatch::kept_gradient(const Asked& asked) {
  return asked.handle.grad().defined() || asked.zeroed || (asked.leaves_trace && has_history(asked.gradient));
}

std::int64_t OptimizerWatch::steps_by_state(const Watched& watched, const Asked& asked) {
  const auto steps = parameters::steps_between(*watched.optimizer, asked.mark,
                                               parameters::step_mark(*watched.optimizer, asked.handle));
  if (!steps) return kUnknown;
  return *steps > 0 || kept_gradient(asked) ? *steps : kNone;
}

OptimizerWatch::Leaving OptimizerWatch::leave(const Watched& watched, const Asked& asked) {
  const at::NoGradGuard no_grad;
  Leaving leaving;
  const auto& place = watched.parameters.at(asked.handle.unsafeGetTensorImpl());
  leaving.before = asked.sample.update;
  leaving.after = *parameters::plain_update(
      *watched.optimizer, watched.optimizer->param_groups()[place.group].options());  // as for `before`
  leaving.epsilon = epsilon_of(asked.handle.scalar_type());
  leaving.had_gradient = kept_gradient(asked);
  leaving.is_whole = asked.is_whole;
  const auto& places = asked.sample.places;
  const auto elements = at::stack({asked.sample.before, memory_at(asked.handle).index_select(0, places),
                                   memory_at(asked.gradient).index_select(0, places)})
                            .to(at::kDouble);
  constexpr bool kNonBlocking = true;
  leaving.elements = devices::host_memory(elements.numel(), at::kDouble, elements.device());
  leaving.elements.copy_(elements.reshape({-1}), kNonBlocking);
  leaving.copied.set(elements.device());
  return leaving;
}

std::int64_t OptimizerWatch::steps_by_elements(Leaving& leaving) {
  leaving.copied.wait();
  const auto* numbers = leaving.elements.const_data_ptr<double>();
  const auto count = static_cast<std::size_t>(leaving.elements.numel() / 3);
  std::vector<parameters::UpdatedElement> elements(count);
  bool changed = false;
  for (std::size_t i = 0; i < count; ++i) {
    elements[i] = {numbers[i], numbers[count + i], numbers[2 * count + i]};
    changed = changed || elements[i].before != elements[i].after;
  }
  auto steps = parameters::count_steps(elements, leaving.before, leaving.epsilon);
  const auto other = parameters::count_steps(elements, leaving.after, leaving.epsilon);
  const bool differ = steps && other && *steps != *other;
  if (!steps) steps = other;
  if (steps && !differ && (*steps > 0 || leaving.had_gradient)) return *steps;
  if (!leaving.is_whole) return kUnknown;  // others' elements may have no gradient
  return changed ? kSome : kNone;
}

OptimizerWatch::Steps OptimizerWatch::steps_of(Watched& watched, std::uint64_t noted) const {
  Steps steps{kUnknown, noted, looks_};
  const auto asked = std::exchange(watched.asked, {});
  if (std::exchange(watched.has_state, false)) {
    for (const auto& each : asked) steps.count = most_telling(steps.count, steps_by_state(watched, each));
    return steps;
  }
  std::vector<Leaving> leaving;
  for (const auto& each : asked) leaving.push_back(leave(watched, each));
  const bool is_later = !asked.empty() && !asked.front().handle.is_cpu();
  if (is_later || !watched.leaving.empty()) {
    std::swap(leaving, watched.leaving);
    std::swap(steps, watched.later);
  }
  for (auto& each : leaving) steps.count = most_telling(steps.count, steps_by_elements(each));
  return steps;
}

std::array<OptimizerWatch::Seen, OptimizerWatch::kCompared> OptimizerWatch::look() {
  std::array<Seen, kCompared> seen;
  ++looks_;
  for (std::size_t k = 0; k < std::min(watched_.size(), kCompared); ++k) {
    auto& watched = watched_[k];
    const auto noted = std::exchange(watched.noted, 0);
    if (noted == 0 && watched.leaving.empty()) continue;
    seen[k].parameters = noted;
    if (noted != 0) seen[k].hyper_parameters = hash_of_options(*watched.optimizer);
    seen[k].steps = steps_of(watched, noted);
  }
  return seen;
}

std::string OptimizerWatch::describe(std::size_t optimizer) const {
  const auto& watched = *watched_[optimizer].optimizer;
  std::ostringstream text;
  text.precision(17);
  text << parameters::descriptor_of(watched).name;
  const auto groups = parameters::hyper_parameters(watched);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups.size() > 1) text << "; group " << g;
    for (const auto& [name, value] : groups[g]) text << ", " << name << ' ' << value;
  }
  return text.str();
}

}  // namespace autopar::calls
