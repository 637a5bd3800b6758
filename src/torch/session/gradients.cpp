#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <autopar/core/error.hpp>
#include <autopar/plan/text.hpp>

#include "torch/gradients/gradient_factor.hpp"
#include "torch/session/session_impl.hpp"

namespace autopar::session {

StageGradients Impl::gradients_of(Call& call, const std::vector<ValueId>& roots) {
  StageGradients gradients{call.program, &call.program->reached(roots), call.offered, {}, {}};
  if (call.made_gradients) {
    gradients.by_position = std::move(*call.made_gradients);
    return gradients;
  }
  const auto& runtime = *call.program->runtime;
  gradients.by_position = call.engine->take_gradients();
  gradients.spent = call.engine->take_spent();
  for (const auto parameter : *gradients.reached) {
    auto& gradient = gradients.by_position[runtime.position_of(parameter)];
    if (!gradient.defined())
      gradient = at::zeros_like(runtime.handle(parameter), at::TensorOptions().device(deployment_.device()));
  }
  return gradients;
}

void Impl::apply(const StageGradients& gradients, const at::Tensor& factor, bool keep, bool accumulate) {
  const at::NoGradGuard no_grad;
  if (!accumulate) flush_reduced();
  const auto& runtime = *gradients.program->runtime;
  std::vector<at::Tensor> own;
  for (const auto parameter : *gradients.reached) own.push_back(gradients.by_position[runtime.position_of(parameter)]);
  // On the CPU looking at the factor costs nothing, and one is what it nearly always is.
  const bool is_one = factor.is_cpu() && factor.item<double>() == 1.0;
  // In place where it may be: gradients of all parameters, twice, would be what no plan counts.
  if (!keep) gradients::multiply_unless_one(own, factor);
  const auto scaled = [&](const at::Tensor& gradient) {
    return keep && !is_one ? gradient.mul(factor.reshape({}).to(gradient.options())) : gradient;
  };
  const bool may_take = !keep || !is_one;
  LeavingGradients leaving;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto& handle = runtime.handle((*gradients.reached)[i]);
    const auto gradient = scaled(own[i]);
    if (!accumulate) {
      add_to_owner(handle, gradient, may_take, leaving);
      continue;
    }
    gradients_.accumulate(handle, gradient, may_take);
  }
  add_arrived(leaving);
}

void Impl::flush_reduced() {
  LeavingGradients leaving;
  for (const auto& sum : gradients_.take_reduced()) add_to_owner(sum.handle, sum.gradient, true, leaving);
  add_arrived(leaving);
}

/// Adds to `.grad`, what is offloaded when it has arrived on the host.
void Impl::add_to_owner(const at::Tensor& handle, const at::Tensor& gradient, bool may_take,
                        LeavingGradients& leaving) {
  if (gradient.device() == handle.device()) {
    add_to(handle.mutable_grad(), gradient, may_take);
    parameters::mark_like(handle.grad(), handle);
    note_gradient(handle);
    return;
  }
  constexpr bool kNonBlocking = true;
  const auto& tensor = parameters_.of(handle);
  auto& memory = parameters_.memory_of(tensor);
  auto& set = leaving.sets[&memory];
  if (!set.defined()) set = memory.gradient_memory();
  auto copy = gradients::part_of(set, memory.within_part(*parameters_.place_of(tensor)).begin, handle.sizes());
  leaving.copies.push_back({handle, copy.copy_(gradient, kNonBlocking)});
}

/// For ranks to compare what optimizers make of it.
void Impl::note_gradient(const at::Tensor& handle) {
  unattached_.note_gradient(handle);
  if (world_.size() > 1) watch_.note_gradient(handle, parameters_.is_whole(parameters_.of(handle)));
}

/// An optimizer on the host may step as soon as this returns.
void Impl::add_arrived(const LeavingGradients& leaving) {
  if (leaving.copies.empty()) return;
  devices::DeviceEvent copied;
  copied.set(deployment_.device());
  copied.wait();
  for (const auto& [handle, gradient] : leaving.copies) {
    add_to(handle.mutable_grad(), gradient, true);
    parameters::mark_like(handle.grad(), handle);
    note_gradient(handle);
  }
}

void Impl::reduce_accumulated() { gradients_.reduce({deployment_.wire(), deployment_.groups(), parameters_}); }

Bytes Impl::planned_memory() const {
  Bytes planned;
  for (const auto& stage : deployment_.plan().stages) {
    if (stage.mesh.contains(world_.rank_id())) planned += stage.peak_memory;
  }
  return planned;
}

void Impl::warn_of_second_gradients() {
  if (warned_of_second_gradients_ || deployment_.plan().gradient_copies > 1) return;
  Bytes first = gradients_.accumulated();
  for (const auto& tensor : parameters_.tensors()) {
    const auto& grad = tensor.handle.grad();
    const bool here = tensor.is_parameter && grad.defined() && grad.device() == deployment_.device();
    if (here) first += Bytes(static_cast<std::int64_t>(grad.nbytes()));
  }
  if (first == Bytes(0)) return;
  const auto planned = planned_memory();
  if (planned + first <= deployment_.plan().device_memory) return;
  warned_of_second_gradients_ = true;
  log_.warn("a call makes gradients while there are some of earlier calls; the plan counts one set (" +
            readable(planned) + " of " + readable(deployment_.plan().device_memory) +
            "), so memory may run out: set gradient_accumulation = true to plan" +
            " for two, or call zero_grad() before the model");
}

void Impl::sync_gradients() {
  require_deployed("sync_gradients");
  const auto headers = exchange(world_, next_header(CallKind::kSync), "");
  const bool pending =
      std::any_of(headers.begin(), headers.end(), [](const auto& header) { return header.has_pending; });
  guarded("sync_gradients", [&] {
    const at::NoGradGuard no_grad;
    reduce_accumulated();
    StepOutcome outcome;
    if (scaler_) outcome.overflow = any_overflow(!gradients_.reduced_are_finite(deployment_.device()));
    if (!scaler_ || !pending || !skips(outcome)) flush_reduced();
  });
}

// ---------------------------------------------------------------- half precision

// What calls inside no_sync accumulate is looked at when it is reduced: what is not finite stays so.
StepOutcome Impl::unscale(const Call& call, StageGradients& gradients, std::vector<at::Tensor>& of_inputs) {
  StepOutcome outcome;
  if (!scaler_) return outcome;
  const at::NoGradGuard no_grad;
  const auto& runtime = *call.program->runtime;
  std::vector<at::Tensor> own;
  for (const auto parameter : *gradients.reached) own.push_back(gradients.by_position[runtime.position_of(parameter)]);
  const bool finite = gradients::divide_and_check(own, call.loss_scale, deployment_.device());
  for (auto& gradient : of_inputs) {
    if (gradient.defined()) gradient = gradient.div(call.loss_scale);
  }
  if (!call.accumulate)
    outcome.overflow = any_overflow(!finite || !gradients_.reduced_are_finite(deployment_.device()));
  return outcome;
}

bool Impl::any_overflow(bool mine) {
  const auto flag = at::full({}, mine ? 1.0 : 0.0, at::TensorOptions().dtype(at::kDouble).device(deployment_.device()));
  return deployment_.sums().sum({flag})[0].item<double>() > 0;
}

/// Whether the optimizers are to leave the parameters alone: an undefined gradient is one that they pass over.
bool Impl::skips(StepOutcome& outcome) {
  if (!scaler_) return false;
  if (!outcome.counted) {
    scaler_->update(outcome.overflow);
    note_scaler();
    outcome.counted = true;
  }
  if (!outcome.overflow) return false;
  gradients_.drop_reduced();
  for (const auto& tensor : parameters_.tensors()) {
    if (tensor.is_parameter && parameters_.holds(tensor)) tensor.handle.mutable_grad().reset();
  }
  return true;
}

void Impl::note_scaler() {
  stats_.loss_scale = scaler_->scale();
  stats_.skipped_steps = scaler_->state().skipped;
}

void Impl::drop_accumulated() {
  watch_.note_zeroing();
  gradients_.drop();
}

}  // namespace autopar::session
