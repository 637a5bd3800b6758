#include "torch/gradients/gradient_applier.hpp"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <autopar/plan/text.hpp>

#include "torch/gradients/gradient_factor.hpp"
#include "torch/parameters/part_mark.hpp"

namespace autopar::gradients {

namespace {

std::vector<at::Tensor> reached_of(const steps::StageGradients& gradients) {
  std::vector<at::Tensor> reached;
  for (const auto position : gradients.reached->positions) reached.push_back(gradients.by_position[position]);
  return reached;
}

}  // namespace

// ---------------------------------------------------------------- one call

void GradientApplier::hand_over(const steps::StageGradients& gradients, const results::GradientRequest& request,
                                const at::Tensor& factor, bool accumulate, StepOutcome& outcome,
                                std::vector<at::Tensor>& out) {
  if (request.plain) {
    if (accumulate || !skips(outcome)) apply(gradients, factor, request.retain, accumulate);
    return;
  }
  bool adds = false;
  for (std::size_t k = 0; k < request.parameters.size(); ++k)
    adds = adds || (request.parameters[k] && !request.returned[k]);
  const bool skipped = adds && skips(outcome);
  if (adds && !skipped) flush_reduced();
  const auto first = out.size() - request.parameters.size();
  const auto& offered = *gradients.offered;
  for (std::size_t k = 0; k < offered.handles.size(); ++k) {
    if (!request.parameters[k] || (skipped && !request.returned[k])) continue;
    const auto& gradient = gradients.by_position[offered.positions[k]];
    if (!gradient.defined()) continue;
    const auto& handle = offered.handles[k];
    out[first + k] = multiplied(gradient, factor).to(handle.device());
    parameters::mark_like(out[first + k], handle);
  }
}

void GradientApplier::apply(const steps::StageGradients& gradients, const at::Tensor& factor, bool keep,
                            bool accumulate) {
  const at::NoGradGuard no_grad;
  if (!accumulate) flush_reduced();
  auto own = reached_of(gradients);
  // On the CPU looking at the factor costs nothing, and one is what it nearly always is.
  const bool is_one = factor.is_cpu() && factor.item<double>() == 1.0;
  // In place where it may be: gradients of all parameters, twice, would be what no plan counts.
  if (!keep) multiply_unless_one(own, factor);
  const auto scaled = [&](const at::Tensor& gradient) {
    return keep && !is_one ? multiplied(gradient, factor) : gradient;
  };
  const bool may_take = !keep || !is_one;
  LeavingGradients leaving;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto& handle = gradients.reached->handles[i];
    const auto gradient = scaled(own[i]);
    if (!accumulate) {
      add_to_owner(handle, gradient, may_take, leaving);
      continue;
    }
    store_.accumulate(parameters_.of(handle), gradient, may_take);
  }
  add_arrived(leaving);
}

/// Adds to `.grad`, what is offloaded when it has arrived on the host.
void GradientApplier::add_to_owner(const at::Tensor& handle, const at::Tensor& gradient, bool may_take,
                                   LeavingGradients& leaving) {
  if (gradient.device() == handle.device()) {
    add_to(handle.mutable_grad(), gradient, may_take);
    parameters::mark_like(handle.grad(), handle);
    watches_.note_gradient(handle);
    return;
  }
  constexpr bool kNonBlocking = true;
  const auto& tensor = parameters_.of(handle);
  auto& memory = parameters_.memory_of(tensor);
  auto& set = leaving.sets[&memory];
  if (!set.defined()) set = memory.gradient_memory();
  auto copy = parameters::part_of(set, memory.within_part(*parameters_.place_of(tensor)).begin, handle.sizes());
  leaving.copies.push_back({handle, copy.copy_(gradient, kNonBlocking)});
}

/// An optimizer on the host may step as soon as this returns.
void GradientApplier::add_arrived(const LeavingGradients& leaving) {
  if (leaving.copies.empty()) return;
  devices::DeviceEvent copied;
  copied.set(deployment_.device());
  copied.wait();
  for (const auto& [handle, gradient] : leaving.copies) {
    add_to(handle.mutable_grad(), gradient, true);
    parameters::mark_like(handle.grad(), handle);
    watches_.note_gradient(handle);
  }
}

void GradientApplier::warn_of_second_gradients() {
  if (warned_of_second_gradients_ || deployment_.plan().gradient_copies > 1) return;
  Bytes first = store_.accumulated();
  for (const auto& tensor : parameters_.tensors()) {
    const auto& grad = tensor.handle.grad();
    const bool here = tensor.is_parameter && grad.defined() && grad.device() == deployment_.device();
    if (here) first += Bytes(static_cast<std::int64_t>(grad.nbytes()));
  }
  if (first == Bytes(0)) return;
  const auto planned = deployment_.planned_memory();
  if (planned + first <= deployment_.plan().device_memory) return;
  warned_of_second_gradients_ = true;
  ranks_.logger(LogModule::kSession)
      .warn("a call makes gradients while there are some of earlier calls; the plan counts one set (" +
            readable(planned) + " of " + readable(deployment_.plan().device_memory) +
            "), so memory may run out: set gradient_accumulation = true to plan" +
            " for two, or call zero_grad() before the model");
}

// ---------------------------------------------------------------- no_sync

void GradientApplier::flush_reduced() {
  LeavingGradients leaving;
  for (const auto& sum : store_.take_reduced()) add_to_owner(sum.handle, sum.gradient, true, leaving);
  add_arrived(leaving);
}

void GradientApplier::sync(bool pending) {
  const at::NoGradGuard no_grad;
  reduce_accumulated();
  StepOutcome outcome;
  if (scaler_) outcome.overflow = any_overflow(!store_.reduced_are_finite(deployment_.device()));
  if (!scaler_ || !pending || !skips(outcome)) flush_reduced();
}

void GradientApplier::drop() {
  watches_.steps().note_zeroing();
  store_.drop();
}

// ---------------------------------------------------------------- precision = fp16

// What calls inside no_sync accumulate is looked at when it is reduced: what is not finite stays so.
StepOutcome GradientApplier::unscale(const steps::Call& call, const steps::StageGradients& gradients,
                                     std::vector<at::Tensor>& of_arguments) {
  StepOutcome outcome;
  if (!scaler_) return outcome;
  const at::NoGradGuard no_grad;
  auto own = reached_of(gradients);
  const bool finite = divide_and_check(own, call.loss_scale, deployment_.device());
  for (auto& gradient : of_arguments) {
    if (gradient.defined()) gradient = gradient.div(call.loss_scale);
  }
  if (!call.accumulate) outcome.overflow = any_overflow(!finite || !store_.reduced_are_finite(deployment_.device()));
  return outcome;
}

bool GradientApplier::any_overflow(bool mine) {
  const auto flag = at::full({}, mine ? 1.0 : 0.0, at::TensorOptions().dtype(at::kDouble).device(deployment_.device()));
  return deployment_.sums().sum({flag})[0].item<double>() > 0;
}

/// Whether the optimizers are to leave the parameters alone: an undefined gradient is one that they pass over.
bool GradientApplier::skips(StepOutcome& outcome) {
  if (!scaler_) return false;
  if (!outcome.counted) {
    scaler_->update(outcome.overflow);
    outcome.counted = true;
  }
  if (!outcome.overflow) return false;
  store_.drop_reduced();
  for (const auto& tensor : parameters_.tensors()) {
    if (tensor.is_parameter && parameters_.holds(tensor)) tensor.handle.mutable_grad().reset();
  }
  return true;
}

}  // namespace autopar::gradients
