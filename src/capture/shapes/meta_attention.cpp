#include "capture/shapes/meta_attention.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StorageImpl.h>

#include "capture/shapes/meta_registration.hpp"
#include "ops/names.hpp"

namespace autopar::shapes {
namespace {

constexpr std::int64_t kFlashAttention = 1;  // at::SDPBackend::flash_attention

/// What the choice looks at, as on a CPU.
at::Tensor look_of(const at::Tensor& meta) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), meta.storage().nbytes(),
                                                       at::DataPtr(nullptr, at::kCPU), nullptr, /*resizable=*/false);
  auto look = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                       c10::DispatchKeySet(c10::DispatchKey::CPU), meta.dtype());
  look.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
  if (meta.requires_grad()) look.set_requires_grad(true);
  return look;
}

void check(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
           const std::optional<at::Tensor>& mask) {
  TORCH_CHECK(query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type(),
              "scaled_dot_product_attention: query, key and value have different types: ", query.scalar_type(), ", ",
              key.scalar_type(), ", ", value.scalar_type());
  TORCH_CHECK(query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2,
              "scaled_dot_product_attention: query, key and value need at least 2 dimensions");
  if (!mask) return;
  TORCH_CHECK(mask->scalar_type() == at::kBool || mask->scalar_type() == at::kFloat ||
                  mask->scalar_type() == query.scalar_type(),
              "scaled_dot_product_attention: the mask has type ", mask->scalar_type(),
              ", which is neither bool nor float nor that of the query");
}

/// As the query lies, in memory without gaps.
at::Tensor form_of_query(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  auto form = at::empty_like(query);
  const bool differentiable = query.requires_grad() || key.requires_grad() || value.requires_grad();
  if (!differentiable || !at::GradMode::is_enabled()) return form;
  form.set_requires_grad(true);
  return form.clone();  // no leaf: an in-place operator may follow
}

}  // namespace

at::Tensor attention_form(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::optional<at::Tensor>& given_mask, double dropout, bool is_causal,
                          std::optional<double> scale, bool grouped) {
  const auto mask = given_mask && given_mask->defined() ? given_mask : std::nullopt;
  check(query, key, value, mask);
  const auto look_of_mask = mask ? std::optional(look_of(*mask)) : std::nullopt;
  const auto choice = at::cpu::_fused_sdp_choice(look_of(query), look_of(key), look_of(value), look_of_mask, dropout,
                                                 is_causal, scale, grouped);
  if (choice != kFlashAttention) {
    return std::get<0>(
        at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, is_causal, {}, scale, grouped));
  }
  return form_of_query(query, key, value);
}

namespace meta {

void register_attention(torch::Library& library) { add(library, "scaled_dot_product_attention", "", &attention_form); }

}  // namespace meta

std::optional<at::Tensor> form_on_cuda(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  if (op.schema().name() != ops::kAttention) return std::nullopt;
  const auto query = arguments[0].toTensor(), key = arguments[1].toTensor(), value = arguments[2].toTensor();
  const auto mask = arguments[3].isTensor() ? std::optional(arguments[3].toTensor()) : std::nullopt;
  check(query, key, value, mask);
  const bool has_kernels = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
                           query.scalar_type() != at::kDouble && query.scalar_type() == key.scalar_type() &&
                           query.scalar_type() == value.scalar_type();
  if (!has_kernels || query.size(0) != key.size(0) || query.size(0) != value.size(0)) return std::nullopt;
  if (query.size(3) != key.size(3) || query.size(3) != value.size(3) || key.size(2) != value.size(2))
    return std::nullopt;
  return form_of_query(query, key, value);
}

}  // namespace autopar::shapes
