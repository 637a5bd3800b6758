#include "torch/parameters/whole_handles.hpp"

#include <utility>

#include "capture/trace/fake_tensor.hpp"

namespace autopar::parameters {

void give_data(const at::Tensor& handle, const at::Tensor& data) {
  const bool requires_grad = handle.requires_grad();
  auto same = handle;
  same.set_data(data);
  same.set_requires_grad(requires_grad);
}

WholeHandles::WholeHandles(const StateRegistry& registry) {
  for (const auto& tensor : registry.tensors()) {
    const bool is_apart = !tensor.units.empty() || tensor.slices.has_value();
    if (!is_apart || trace::is_fake(tensor.handle)) continue;
    kept_.push_back(
        {tensor.handle, tensor.handle.variable_data(), std::exchange(tensor.handle.mutable_grad(), at::Tensor())});
    const auto placeholder =
        trace::make_fake(tensor.sizes, tensor.handle.scalar_type(), false,
                         "parameter '" + tensor.name() + "' is held in shards; use model->gather(p)");
    give_data(tensor.handle, placeholder);
  }
}

WholeHandles::~WholeHandles() {
  for (const auto& [handle, data, gradient] : kept_) {
    give_data(handle, data);
    handle.mutable_grad() = gradient;
  }
}

}  // namespace autopar::parameters
