#include "torch/parameters/compute_copy.hpp"

#include <typeinfo>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/COW.h>

#include "torch/fused/vectorised_rows.hpp"

namespace autopar::parameters {

namespace cow = c10::impl::cow;

namespace {

c10::StorageImpl& memory_of(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.device() == b.device();
}

}  // namespace

void ComputeCopy::keep(const at::Tensor& parameter, c10::ScalarType type) {
  const bool is_alone = parameter.has_storage() && parameter.storage().use_count() == 1;
  if (!is_alone || parameter.is_inference() || !parameter.is_non_overlapping_and_dense()) return;
  const auto* const meta = parameter.unsafeGetTensorImpl()->get_backend_meta();
  if (meta != nullptr && typeid(*meta) != typeid(parameters::PartMark)) return;
  auto* const mark = parameters::mark_of(parameter);
  if (!cow::has_simple_data_ptr(memory_of(parameter))) return;
  auto copy = c10::make_intrusive<ComputeCopy>(type);
  if (mark != nullptr) copy->mark = parameters::PartMarkPtr::reclaim_copy(mark);
  parameter.unsafeGetTensorImpl()->set_backend_meta(std::move(copy));
}

void ComputeCopy::drop(const at::Tensor& parameter) {
  if (auto* copy = of(parameter); copy != nullptr)
    parameter.unsafeGetTensorImpl()->set_backend_meta(std::move(copy->mark));
}

// The class is final, so a cast only compares types. It is asked for every parameter in every call.
ComputeCopy* ComputeCopy::of(const at::Tensor& parameter) {
  auto* const meta = parameter.unsafeGetTensorImpl()->get_backend_meta();
  return meta != nullptr && typeid(*meta) == typeid(ComputeCopy) ? static_cast<ComputeCopy*>(meta) : nullptr;
}

const at::Tensor& ComputeCopy::current(const at::Tensor& parameter) {
  if (is_current(parameter)) return copy_;
  const c10::InferenceMode for_any_mode(false);
  const at::NoGradGuard no_grad;
  if (!to_write(parameter).defined()) copy_ = fused::empty_in_packs(parameter, type_);
  copy_.copy_(parameter.detach());
  agrees(parameter);
  return copy_;
}

at::Tensor ComputeCopy::to_write(const at::Tensor& parameter) const {
  const bool may_be_written = copy_.defined() && copy_.storage().use_count() == 1 && same_layout(copy_, parameter);
  return may_be_written ? copy_ : at::Tensor();
}

void ComputeCopy::agrees(const at::Tensor& parameter) {
  auto& memory = memory_of(parameter);
  static_cast<void>(cow::lazy_clone_storage(memory));  // marks the memory as copy-on-write; the clone is freed at once
  const bool is_marked = cow::is_cow_data_ptr(memory.data_ptr());
  storage_ = parameter.storage().getWeakStorageImpl();
  mark_ = is_marked ? memory.data_ptr().get_context() : nullptr;
  version_ = static_cast<std::uint32_t>(parameter._version());
}

bool ComputeCopy::is_current(const at::Tensor& parameter) const {
  if (!copy_.defined() || mark_ == nullptr || !storage_ || !same_layout(copy_, parameter)) return false;
  const auto& memory = memory_of(parameter);
  return storage_->_unsafe_get_target() == &memory && cow::is_cow_data_ptr(memory.data_ptr()) &&
         memory.data_ptr().get_context() == mark_ && static_cast<std::uint32_t>(parameter._version()) == version_;
}

}  // namespace autopar::parameters
