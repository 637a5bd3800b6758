#include "torch/fused/vectorised_rows.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "torch/fused/products.hpp"
#include "torch/fused/rows_of.hpp"

namespace autopar::fused {

namespace {

std::int64_t elements_of_memory(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.storage().nbytes()) / tensor.element_size();
}

/// The weight with the zero rows after its last, if `empty_in_packs` allocated its memory; otherwise undefined.
at::Tensor with_zeros_behind(const at::Tensor& weight) {
  const auto outputs = in_vectorised_rows(weight.size(0));
  const bool has_them =
      weight.is_contiguous() && weight.storage_offset() == 0 && elements_of_memory(weight) == outputs * weight.size(1);
  return has_them ? weight.as_strided({outputs, weight.size(1)}, weight.strides()) : at::Tensor();
}

}  // namespace

at::Tensor empty_in_packs(const at::Tensor& like, c10::ScalarType type) {
  const auto options = like.options().dtype(type);
  const auto outputs = like.dim() == 2 ? in_vectorised_rows(like.size(0)) : 0;
  if (outputs == 0 || outputs == like.size(0) || !like.is_contiguous()) return at::empty_like(like, options);
  const at::AutoDispatchBelowADInplaceOrView no_base;  // a base tensor would also keep the memory alive
  const auto memory = at::empty({outputs, like.size(1)}, options);
  memory.narrow(0, like.size(0), outputs - like.size(0)).zero_();
  return memory.narrow(0, 0, like.size(0));
}

std::int64_t padding_behind_rows(const at::Tensor& rows) {
  const auto width = in_vectorised_rows(rows.size(1));
  const bool has_gaps = rows.stride(1) == 1 && rows.stride(0) == width &&
                        rows.storage_offset() % kElementsOfPack == 0 &&
                        rows.storage_offset() + rows.size(0) * width <= elements_of_memory(rows);
  return has_gaps ? width - rows.size(1) : 0;
}

at::Tensor empty_like_rows(const at::Tensor& value) {
  const bool may_have_gaps = value.dim() > 1 && value.stride(-1) == 1 && value.stride(-2) > value.size(-1) &&
                             value.stride(-2) == in_vectorised_rows(value.size(-1));
  if (!may_have_gaps) return at::empty_like(value);
  const auto rows = rows_of(value);
  if (padding_behind_rows(rows) == 0) return at::empty_like(value);
  return at::zeros({rows.size(0), rows.stride(0)}, value.options()).narrow(1, 0, rows.size(1)).view(value.sizes());
}

at::Tensor linear_in_padded_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto rows = rows_of(x);
  const auto outputs = weight.size(0), width = in_vectorised_rows(outputs);
  at::Tensor result;
  if (const auto whole = with_zeros_behind(weight); whole.defined()) {
    const auto wide_bias = bias.defined() ? at::constant_pad_nd(bias, {0, width - outputs}) : at::Tensor();
    auto wide = large_linear(rows, whole, wide_bias);
    if (!wide.defined()) wide = bias.defined() ? at::addmm(wide_bias, rows, whole.t()) : at::mm(rows, whole.t());
    result = wide.narrow(1, 0, outputs);
  } else {
    result = at::empty({rows.size(0), width}, x.options()).narrow(1, 0, outputs);
    if (bias.defined())
      at::addmm_out(result, bias, rows, weight.t());
    else
      at::mm_out(result, rows, weight.t());
  }
  auto sizes = x.sizes().vec();
  sizes.back() = outputs;
  return result.view(sizes);
}

at::Tensor gradient_through_padded_rows(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight) {
  const auto rows = rows_of(gradient);
  const auto whole = padding_behind_rows(rows) > 0 ? with_zeros_behind(weight) : at::Tensor();
  if (!whole.defined()) return matrix_product(rows, weight, weight.scalar_type()).view(x.sizes());
  const auto width = rows.stride(0);
  return matrix_product(rows.as_strided({rows.size(0), width}, {width, 1}), whole, whole.scalar_type()).view(x.sizes());
}

}  // namespace autopar::fused
