#include "torch/parameters/attached_optimizers.hpp"

#include <algorithm>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/torch/multi_tensor_optimizer.hpp>

#include "capture/trace/fake_tensor.hpp"
#include "torch/parameters/optimizer_state.hpp"

namespace autopar::parameters {

std::optional<double> AttachedOptimizers::state_factor(int ranks) const {
  std::optional<double> largest;
  for (const auto* optimizer : optimizers_)
    largest = std::max(largest.value_or(0), parameters::state_factor(*optimizer, ranks));
  return largest;
}

bool AttachedOptimizers::are_multi_tensor() const {
  return !empty() && std::ranges::all_of(optimizers_, [](const torch::optim::Optimizer* optimizer) {
    return dynamic_cast<const MultiTensorOptimizer*>(optimizer) != nullptr;
  });
}

void AttachedOptimizers::require_for(const Plan& plan, bool inference) const {
  const auto sliced = std::ranges::find_if(plan.stages, [](const StagePlan& stage) { return stage.mesh.tensor() > 1; });
  if (sliced != plan.stages.end() && !inference && empty()) {
    throw InvalidArgument("tensor_parallel = " + std::to_string(sliced->mesh.tensor()) +
                          " needs to know the optimizer, which steps on slices of parameters: call "
                          "model->attach(optimizer) before the first call, or set tensor_parallel = 1, or inference = "
                          "true where nothing is trained");
  }
  const auto has_replicas = [](const StagePlan& stage) { return stage.mesh.replicas() > 1; };
  if (plan.offload != Offload::kNone && empty()) {
    throw InvalidArgument("offload = " + name_of(plan.offload) +
                          " needs to know the optimizer, which then steps on the host: " +
                          "call model->attach(optimizer) before the first call, or set offload = none");
  }
  if (plan.zero == 0 || std::none_of(plan.stages.begin(), plan.stages.end(), has_replicas)) return;
  if (empty()) {
    throw InvalidArgument(
        "ZeRO " + std::to_string(plan.zero) +
        " needs to know the optimizer, which steps on shards: call model->attach(optimizer) before the "
        "first call, or set zero = 0");
  }
  for (const auto* optimizer : optimizers_) static_cast<void>(descriptor_of(*optimizer));
}

// Some optimizers make their state when they are made, of whole parameters, also of those of other ranks.
void AttachedOptimizers::fit(torch::optim::Optimizer& optimizer) const {
  const auto& descriptor = descriptor_of(optimizer);
  for (const auto& tensor : parameters_.tensors()) {
    if (!tensor.is_parameter || optimizer.state().count(tensor.handle.unsafeGetTensorImpl()) == 0) continue;
    if (!parameters_.holds(tensor)) {
      optimizer.state().erase(tensor.handle.unsafeGetTensorImpl());
      continue;
    }
    auto entries = state_of(optimizer, tensor.handle);
    if (entries.empty()) continue;
    const auto here = parameters_.elements_here(tensor);
    std::vector<at::Tensor> recorded;
    for (auto& [name, value] : entries) {
      if (!init_ || !trace::is_fake(value)) continue;
      const bool in_slices = tensor.slices && value.sizes() == at::IntArrayRef(tensor.sizes);
      const auto slice = in_slices ? made_alone(*init_, value, here) : std::nullopt;
      if (!slice) {
        recorded.push_back(value);
        continue;
      }
      const auto own = slice->narrow(0, here.part.begin, here.part.size());
      value = here.is_partial() ? own.clone() : own;
    }
    if (!recorded.empty()) init_->materialise(recorded);
    for (auto& [name, value] : entries) {
      const auto kind = state_slot(descriptor, name).kind();
      if (kind == StateKind::kCounter || kind == StateKind::kScalar) continue;
      if (kind == StateKind::kWhole) {
        value = value.to(tensor.handle.device());
        continue;
      }
      auto fitted = value.to(tensor.handle.device());
      const bool is_of_whole = value.sizes() == at::IntArrayRef(tensor.sizes) && value.numel() != tensor.handle.numel();
      if (!parameters_.is_whole(tensor) && is_of_whole) fitted = here.of(fitted.contiguous()).clone();
      value = parameters_.is_whole(tensor) ? fitted : fitted.reshape(tensor.handle.sizes());
    }
    set_state(optimizer, tensor.handle, entries);
  }
  refuse_to_save_parts(optimizer);
}

void AttachedOptimizers::refuse_to_save_parts(torch::optim::Optimizer& optimizer) const {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!parameters_.has(parameter)) continue;
      const auto& tensor = parameters_.of(parameter);
      if (parameters_.holds(tensor) && parameters_.is_whole(tensor)) continue;
      return refuse_to_save(optimizer, std::string("torch::save: this rank has ") +
                                           (parameters_.holds(tensor) ? "a shard" : "nothing") + " of the state of '" +
                                           tensor.name() +
                                           "'; use model->save(folder, optimizer), "
                                           "which all ranks call, or save on rank 0 what "
                                           "model->gather_optimizer(optimizer) gives");
    }
  }
}

}  // namespace autopar::parameters
