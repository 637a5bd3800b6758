#include "torch/autograd/like_in_place.hpp"

#include <optional>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace autopar::autograd {

namespace {

constexpr c10::DispatchKey kPlaceKey = c10::DispatchKey::Fake;  // reserved for other projects, by libtorch's own
                                                                // comment

struct PlaceOfLike : c10::BackendMeta {
  at::Tensor memory;
};

at::Tensor memory_for(const at::Tensor& tensor, std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                      std::optional<c10::Device> device, std::optional<bool> pinned,
                      std::optional<c10::MemoryFormat> format) {
  const auto* const place = dynamic_cast<const PlaceOfLike*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  if (place != nullptr && !type && !layout && !device && !pinned && !format) return place->memory;
  const c10::impl::ExcludeDispatchKeyGuard below(kPlaceKey);
  return at::empty_like(tensor, type, layout, device, pinned, format);
}

void install() {
  static const bool installed = [] {
    static torch::Library all(torch::Library::IMPL, "_", c10::make_optional(kPlaceKey), __FILE__, __LINE__);
    all.fallback(torch::CppFunction::makeFallthrough());
    static torch::Library aten(torch::Library::IMPL, "aten", c10::make_optional(kPlaceKey), __FILE__, __LINE__);
    aten.impl("empty_like", torch::CppFunction(&memory_for));
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

at::Tensor with_place_for_like(const at::Tensor& tensor, const at::Tensor& place) {
  install();
  auto same = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                       tensor.key_set().add(kPlaceKey), tensor.dtype());
  auto* const impl = same.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  auto meta = c10::make_intrusive<PlaceOfLike>();
  meta->memory = place;
  impl->set_backend_meta(std::move(meta));
  return same;
}

}  // namespace autopar::autograd
