#include "capture/trace/phantom.hpp"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <autopar/core/error.hpp>

#include "capture/trace/phantom_impl.hpp"

namespace autopar {
namespace detail {

PhantomTag* phantom_tag(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  auto* impl = tensor.unsafeGetTensorImpl();
  if (!impl->key_set().has(kTraceKey)) return nullptr;
  return dynamic_cast<PhantomTag*>(impl->get_backend_meta());
}

c10::Storage phantom_storage(std::size_t bytes, const std::string& description) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       at::DataPtr(nullptr, at::kCPU), nullptr, /*resizable=*/false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(no_data_message(description));
  return c10::Storage(std::move(storage));
}

at::Tensor phantom_over(c10::Storage storage, const at::Tensor& layout, c10::intrusive_ptr<PhantomTag> tag) {
  // Not wrap_tensor_impl(): its invariant check reads the data pointer.
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet({c10::DispatchKey::CPU, kTraceKey}), layout.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(layout.sizes(), layout.strides(), layout.storage_offset());
  impl->set_backend_meta(std::move(tag));
  return tensor;
}

}  // namespace detail

at::Tensor make_phantom(c10::IntArrayRef sizes, c10::ScalarType dtype, bool requires_grad,
                        const std::string& description) {
  const auto layout = at::empty(sizes, at::dtype(dtype).device(at::kMeta));
  auto tag = c10::make_intrusive<detail::PhantomTag>();
  tag->description = description;
  auto phantom = detail::phantom_over(detail::phantom_storage(layout.storage().nbytes(), description), layout, tag);
  phantom.set_requires_grad(requires_grad);
  return phantom;
}

bool is_phantom(const at::Tensor& tensor) { return detail::phantom_tag(tensor) != nullptr; }

void describe_phantom(const at::Tensor& phantom, const std::string& description) {
  const auto* old = detail::phantom_tag(phantom);
  if (old == nullptr) throw InvalidArgument("describe_phantom: the tensor has data, it is no phantom");
  auto tag = c10::make_intrusive<detail::PhantomTag>();  // of its own: phantoms of one run share theirs
  tag->description = description;  // and no owner, who would take what is done to it for a part of a construction
  phantom.unsafeGetTensorImpl()->set_backend_meta(std::move(tag));
  phantom.unsafeGetTensorImpl()
      ->unsafe_storage()
      .unsafeGetStorageImpl()
      ->release_data_and_set_meta_custom_data_ptr_error_msg_(detail::no_data_message(description));
}

void turn_into_phantom(at::Tensor& tensor, const std::string& description) {
  if (is_phantom(tensor)) return describe_phantom(tensor, description);
  const bool requires_grad = tensor.requires_grad();
  const auto layout =
      at::empty_strided(tensor.sizes(), tensor.strides(), at::dtype(tensor.scalar_type()).device(at::kMeta));
  auto tag = c10::make_intrusive<detail::PhantomTag>();
  tag->description = description;
  tensor.mutable_grad().reset();
  tensor.set_data(detail::phantom_over(detail::phantom_storage(layout.storage().nbytes(), description), layout, tag));
  tensor.set_requires_grad(requires_grad);
}

}  // namespace autopar
