#include "torch/parameters/step_count.hpp"

#include <algorithm>
#include <cmath>
#include <typeinfo>

#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include "torch/parameters/optimizer_state.hpp"

namespace autopar::parameters {

StepMark step_mark(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  const auto& descriptor = descriptor_of(optimizer);
  const auto entries = state_of(optimizer, parameter);
  const auto counter = std::ranges::find_if(entries, [&](const StateEntry& entry) {
    return state_slot(descriptor, entry.first).kind() == StateKind::kCounter;
  });
  if (counter != entries.end()) return {found->second.get(), counter->second.item<std::int64_t>(), true};
  const auto buffer = std::ranges::find_if(
      entries, [](const StateEntry& entry) { return entry.second.defined() && !entry.second.is_inference(); });
  if (buffer == entries.end()) return {};
  return {buffer->second.unsafeGetTensorImpl(), static_cast<std::int64_t>(buffer->second._version()), false};
}

std::optional<std::int64_t> steps_between(const torch::optim::Optimizer& optimizer, const StepMark& before,
                                          const StepMark& after) {
  if (after.of == nullptr) return before.of == nullptr ? std::optional<std::int64_t>(0) : std::nullopt;
  const bool is_new = before.of == nullptr;
  if (!is_new && before.of != after.of) return std::nullopt;
  const auto grown = after.number - before.number;
  if (grown < 0) return std::nullopt;
  if (after.counts) return grown;
  // How often another optimizer writes a buffer in the step that makes it is not known. If it did not write the new
  // buffer, neither is the number of steps.
  if (typeid(optimizer) != typeid(torch::optim::SGD)) return is_new && grown == 0 ? std::nullopt : std::optional(grown);
  // torch::optim::SGD makes its buffer in the first step and writes it twice in each later step.
  if (grown % 2 != 0) return std::nullopt;
  return grown / 2 + (is_new ? 1 : 0);
}

std::optional<PlainUpdate> plain_update(const torch::optim::Optimizer& optimizer,
                                        const torch::optim::OptimizerOptions& options) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) == nullptr) return std::nullopt;
  const auto& sgd = static_cast<const torch::optim::SGDOptions&>(options);
  return PlainUpdate{sgd.lr(), sgd.weight_decay()};
}

namespace {

constexpr std::int64_t kMostReplayed = 6;

double stepped(double value, double gradient, const PlainUpdate& update) {
  return value - update.lr * (gradient + update.weight_decay * value);
}

/// An upper bound on the rounding error of some steps.
double rounding(const UpdatedElement& element, std::int64_t steps, double epsilon) {
  return 4 * static_cast<double>(steps + 1) * epsilon * (std::abs(element.before) + std::abs(element.after));
}

bool shows_steps(const UpdatedElement& element, const PlainUpdate& update, double epsilon) {
  const auto change = std::abs(stepped(element.before, element.gradient, update) - element.before);
  return std::isfinite(change) && std::isfinite(element.after) &&
         change > 4 * rounding(element, kMostReplayed, epsilon);
}

}  // namespace

std::optional<std::int64_t> count_steps(std::span<const UpdatedElement> elements, const PlainUpdate& update,
                                        double epsilon) {
  std::optional<std::int64_t> steps;
  for (const auto& element : elements) {
    if (!shows_steps(element, update, epsilon)) continue;
    std::optional<std::int64_t> own;
    if (element.after == element.before) own = 0;
    auto value = element.before;
    for (std::int64_t n = 1; !own && n <= kMostReplayed; ++n) {
      value = stepped(value, element.gradient, update);
      if (std::abs(value - element.after) <= rounding(element, n, epsilon)) own = n;
    }
    if (!own || (steps && *steps != *own)) return std::nullopt;
    steps = own;
  }
  return steps;
}

}  // namespace autopar::parameters
