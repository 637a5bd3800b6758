#include "torch/parameters/state_registry.hpp"

#include <torch/nn/module.h>

#include <autopar/core/error.hpp>

namespace autopar::parameters {

StateRegistry::StateRegistry(const torch::nn::Module& module) {
  const auto add = [this](const std::string& name, const at::Tensor& handle, bool is_parameter) {
    if (!handle.defined()) return;
    const auto [known, is_new] = by_impl_.try_emplace(handle.unsafeGetTensorImpl(), tensors_.size());
    if (is_new)
      tensors_.push_back(
          {StateId::of(tensors_.size()), {}, handle, handle.sizes().vec(), is_parameter, {}, {}, {}, {}, {}});
    tensors_[known->second].names.push_back(name);
    by_name_[name] = known->second;
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), true);
  for (const auto& item : module.named_buffers()) add(item.key(), item.value(), false);
}

const ManagedTensor& StateRegistry::named(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    throw InvalidArgument("the model has no parameter or buffer '" + name +
                          "'; register all of them before it is wrapped");
  }
  return tensors_[found->second];
}

ManagedTensor& StateRegistry::named(const std::string& name) {
  return const_cast<ManagedTensor&>(static_cast<const StateRegistry&>(*this).named(name));
}

const ManagedTensor& StateRegistry::of(const at::Tensor& handle) const {
  const auto found = by_impl_.find(handle.defined() ? handle.unsafeGetTensorImpl() : nullptr);
  if (found == by_impl_.end()) {
    throw InvalidArgument("this tensor is no parameter or buffer of the model; take it from parameters() or buffers()");
  }
  return tensors_[found->second];
}

ManagedTensor& StateRegistry::of(const at::Tensor& handle) {
  return const_cast<ManagedTensor&>(static_cast<const StateRegistry&>(*this).of(handle));
}

bool StateRegistry::has(const at::Tensor& handle) const {
  return handle.defined() && by_impl_.count(handle.unsafeGetTensorImpl()) > 0;
}

}  // namespace autopar::parameters
