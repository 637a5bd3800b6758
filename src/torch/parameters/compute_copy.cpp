#include "torch/parameters/compute_copy.hpp"

#include <typeinfo>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/COW.h>

#include "torch/fused/vectorised_rows.hpp"

namespace autopar::parameters {

namespace cow = c10::impl::cow;

namespace {

c10::StorageImpl& memory_of(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

bool same_layout(const at::Tensor& copy, const at::Tensor& parameter) {
  return copy.sizes() == parameter.sizes() && copy.strides() == parameter.strides() &&
         copy.device() == parameter.device();
}

/// Whether nothing else reads it, and values of the parameter fit.
bool may_be_written(const at::Tensor& copy, const at::Tensor& parameter) {
  return copy.defined() && copy.storage().use_count() == 1 && same_layout(copy, parameter);
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
  const bool unchanged = is_unchanged(parameter);
  if (unchanged && copy_.defined() && same_layout(copy_, parameter)) return copy_;
  const c10::InferenceMode for_any_mode(false);
  const at::NoGradGuard no_grad;
  if (!may_be_written(copy_, parameter)) copy_ = fused::empty_in_packs(parameter, type_);
  copy_.copy_(parameter.detach());
  if (in_8_bits_ && !unchanged) in_8_bits_->made = -1;
  agrees(parameter);
  return copy_;
}

at::Tensor ComputeCopy::current_in_8_bits(const at::Tensor& parameter, const fp8::NextScale& next) {
  if (!parameter.is_contiguous()) return {};
  if (!in_8_bits_) in_8_bits_.emplace();
  auto& [rows, scale, made] = *in_8_bits_;
  scale = next;
  if (is_unchanged(parameter) && made == *scale.made && rows.defined() && same_layout(rows, parameter)) return rows;
  copy_.reset();
  const c10::InferenceMode for_any_mode(false);
  const at::NoGradGuard no_grad;
  if (!may_be_written(rows, parameter)) rows = at::empty_like(parameter, at::TensorOptions(at::kFloat8_e4m3fn));
  fused::put_fp8_rows(parameter.detach(), scale.scale, rows);
  made = *scale.made;
  agrees(parameter);
  return rows;
}

fused::UpdatedCopy ComputeCopy::to_write(const at::Tensor& parameter) const {
  if (in_8_bits_)
    return may_be_written(in_8_bits_->rows, parameter) ? fused::UpdatedCopy{in_8_bits_->rows, in_8_bits_->scale.scale}
                                                       : fused::UpdatedCopy();
  return may_be_written(copy_, parameter) ? fused::UpdatedCopy{copy_} : fused::UpdatedCopy();
}

void ComputeCopy::note_written(const at::Tensor& parameter) {
  if (in_8_bits_) {
    copy_.reset();
    in_8_bits_->made = *in_8_bits_->scale.made;
  }
  agrees(parameter);
}

void ComputeCopy::agrees(const at::Tensor& parameter) {
  auto& memory = memory_of(parameter);
  static_cast<void>(cow::lazy_clone_storage(memory));  // marks the memory as copy-on-write; the clone is freed at once
  const bool is_marked = cow::is_cow_data_ptr(memory.data_ptr());
  storage_ = parameter.storage().getWeakStorageImpl();
  mark_ = is_marked ? memory.data_ptr().get_context() : nullptr;
  version_ = static_cast<std::uint32_t>(parameter._version());
}

bool ComputeCopy::is_unchanged(const at::Tensor& parameter) const {
  if (mark_ == nullptr || !storage_) return false;
  const auto& memory = memory_of(parameter);
  return storage_->_unsafe_get_target() == &memory && cow::is_cow_data_ptr(memory.data_ptr()) &&
         memory.data_ptr().get_context() == mark_ && static_cast<std::uint32_t>(parameter._version()) == version_;
}

}  // namespace autopar::parameters
