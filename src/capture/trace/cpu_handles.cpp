#include "capture/trace/cpu_handles.hpp"

#include <map>
#include <string>
#include <utility>

#include <c10/core/StorageImpl.h>
#include <torch/nn/module.h>

#include "capture/trace/fake_tensor_impl.hpp"

namespace autopar::trace {

namespace {

/// `set_data`, which keeps what autograd knows of the handle.
void replace_data(at::Tensor handle, const at::Tensor& data) {
  const bool requires_grad = handle.requires_grad();
  handle.set_data(data);
  handle.set_requires_grad(requires_grad);
}

}  // namespace

CpuHandles::CpuHandles(const torch::nn::Module& module) {
  std::map<const c10::StorageImpl*, c10::Storage> fakes;
  const auto replace = [&](const std::string& name, const at::Tensor& handle) {
    if (!handle.defined() || handle.device().is_cpu() || !handle.has_storage()) return;
    const auto description = "'" + name + "' has no data while the model is captured";
    const auto& memory = handle.unsafeGetTensorImpl()->unsafe_storage();
    const auto [known, is_new] = fakes.try_emplace(memory.unsafeGetStorageImpl());
    if (is_new) known->second = fake_storage(memory.nbytes(), description);
    auto tag = c10::make_intrusive<FakeTag>();
    tag->description = description;
    const auto fake = fake_over(known->second, handle, std::move(tag));
    kept_.push_back({handle, handle.variable_data(), std::exchange(handle.mutable_grad(), at::Tensor())});
    replace_data(handle, fake);
  };
  for (const auto& parameter : module.named_parameters()) replace(parameter.key(), parameter.value());
  for (const auto& buffer : module.named_buffers()) replace(buffer.key(), buffer.value());
}

CpuHandles::~CpuHandles() {
  for (const auto& [handle, data, gradient] : kept_) {
    replace_data(handle, data);
    handle.mutable_grad() = gradient;
  }
}

}  // namespace autopar::trace
