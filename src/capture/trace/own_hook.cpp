#include "capture/trace/own_hook.hpp"

#include <algorithm>
#include <utility>

#include <ATen/core/VariableHooksInterface.h>
#include <torch/csrc/autograd/variable.h>

namespace autopar::trace {

at::TensorBase OwnHook::operator()(const at::TensorBase& gradient) const {
  if (gradient.defined()) look(at::Tensor(gradient));
  return {};
}

unsigned add_own_hook(const at::Tensor& leaf, OwnHook hook) {
  const bool requires_grad = leaf.requires_grad();
  leaf.set_requires_grad(true);  // libtorch asks for it
  const auto place = at::impl::GetVariableHooks()->_register_hook(leaf, std::move(hook));
  leaf.set_requires_grad(requires_grad);
  return place;
}

bool has_hooks_of_user(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta == nullptr) return false;
  if (meta->post_acc_grad_hooks_ != nullptr) return true;
  if (meta->hooks_.empty()) return false;
  // One of these runs the functions of the list.
  if (meta->cpp_hooks_list_ == nullptr || meta->hooks_.size() > 1) return true;
  return std::ranges::any_of(*meta->cpp_hooks_list_,
                             [](const auto& hook) { return hook && hook.template target<OwnHook>() == nullptr; });
}

}  // namespace autopar::trace
