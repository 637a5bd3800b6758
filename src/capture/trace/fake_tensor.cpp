#include "capture/trace/fake_tensor.hpp"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <autopar/core/error.hpp>

#include "capture/trace/fake_tensor_impl.hpp"

namespace autopar::trace {
FakeTag* fake_tag(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  auto* impl = tensor.unsafeGetTensorImpl();
  if (!impl->key_set().has(kTraceKey)) return nullptr;
  return dynamic_cast<FakeTag*>(impl->get_backend_meta());
}

c10::Storage fake_storage(std::size_t bytes, const std::string& description) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       at::DataPtr(nullptr, at::kCPU), nullptr, /*resizable=*/false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(no_data_message(description));
  return c10::Storage(std::move(storage));
}

at::Tensor fake_over(c10::Storage storage, const at::Tensor& layout, c10::intrusive_ptr<FakeTag> tag) {
  // Not wrap_tensor_impl(): its invariant check reads the data pointer.
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet({c10::DispatchKey::CPU, kTraceKey}), layout.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(layout.sizes(), layout.strides(), layout.storage_offset());
  impl->set_backend_meta(std::move(tag));
  return tensor;
}

at::Tensor make_fake(c10::IntArrayRef sizes, c10::ScalarType dtype, bool requires_grad,
                     const std::string& description) {
  const auto layout = at::empty(sizes, at::dtype(dtype).device(at::kMeta));
  auto tag = c10::make_intrusive<FakeTag>();
  tag->description = description;
  auto fake = fake_over(fake_storage(layout.storage().nbytes(), description), layout, tag);
  fake.set_requires_grad(requires_grad);
  return fake;
}

bool is_fake(const at::Tensor& tensor) { return fake_tag(tensor) != nullptr; }

void describe_fake(const at::Tensor& fake, const std::string& description) {
  const auto* old = fake_tag(fake);
  if (old == nullptr) throw InvalidArgument("describe_fake: the tensor has data, it is no fake tensor");
  auto tag = c10::make_intrusive<FakeTag>();  // of its own: fake tensors of one run share theirs
  tag->description = description;  // and no owner, who would take what is done to it for a part of a construction
  fake.unsafeGetTensorImpl()->set_backend_meta(std::move(tag));
  fake.unsafeGetTensorImpl()
      ->unsafe_storage()
      .unsafeGetStorageImpl()
      ->release_data_and_set_meta_custom_data_ptr_error_msg_(no_data_message(description));
}

void turn_into_fake(at::Tensor& tensor, const std::string& description) {
  if (is_fake(tensor)) return describe_fake(tensor, description);
  const bool requires_grad = tensor.requires_grad();
  const auto layout =
      at::empty_strided(tensor.sizes(), tensor.strides(), at::dtype(tensor.scalar_type()).device(at::kMeta));
  auto tag = c10::make_intrusive<FakeTag>();
  tag->description = description;
  tensor.mutable_grad().reset();
  tensor.set_data(fake_over(fake_storage(layout.storage().nbytes(), description), layout, tag));
  tensor.set_requires_grad(requires_grad);
}

}  // namespace autopar::trace
