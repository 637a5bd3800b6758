#include "torch/parameters/part_mark.hpp"

#include <typeinfo>

#include "torch/parameters/part_access.hpp"
#include "torch/parameters/part_guard.hpp"

namespace autopar::parameters {

namespace {

/// Access to the key set: libtorch has no other way to give a tensor a dispatch key.
struct KeyAccess : c10::TensorImpl {
  static c10::DispatchKeySet& of(c10::TensorImpl& tensor) { return tensor.*(&KeyAccess::key_set_); }
};

}  // namespace

PartMark* mark_of(const at::Tensor& tensor) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  if (!impl->key_set().has(kPartKey)) return nullptr;
  auto* const meta = impl->get_backend_meta();
  if (meta == nullptr) return nullptr;
  if (typeid(*meta) == typeid(PartMark)) return static_cast<PartMark*>(meta);
  const auto* beside = dynamic_cast<BesideMark*>(meta);
  return beside == nullptr ? nullptr : beside->mark.get();
}

void set_mark(const at::Tensor& tensor, PartMarkPtr mark) {
  install_part_guard();
  auto* const impl = tensor.unsafeGetTensorImpl();
  auto& keys = KeyAccess::of(*impl);
  keys = keys.add(kPartKey);
  auto* const meta = impl->get_backend_meta();
  auto* const beside = meta == nullptr ? nullptr : dynamic_cast<BesideMark*>(meta);
  if (beside != nullptr)
    beside->mark = std::move(mark);
  else
    impl->set_backend_meta(std::move(mark));
}

void unset_mark(const at::Tensor& tensor) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  auto& keys = KeyAccess::of(*impl);
  keys = keys.remove(kPartKey);
  if (auto* beside = dynamic_cast<BesideMark*>(impl->get_backend_meta()); beside != nullptr)
    beside->mark.reset();
  else
    impl->set_backend_meta(nullptr);
}

void mark_like(const at::Tensor& tensor, const at::Tensor& part) {
  if (!tensor.defined() || tensor.is_same(part)) return;
  auto* const mark = mark_of(part);
  if (mark == nullptr || mark == mark_of(tensor) || tensor.sizes() != part.sizes()) return;
  set_mark(tensor, PartMarkPtr::reclaim_copy(mark));
}

}  // namespace autopar::parameters
