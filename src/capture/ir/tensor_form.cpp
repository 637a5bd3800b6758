#include "capture/ir/tensor_form.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

namespace autopar::ir {

namespace {

/// Whether elements of these sizes lie one behind the other, in whatever order.
bool leaves_no_gaps(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides) {
  std::vector<std::size_t> order;  // of dims that have a stride worth the name
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  std::int64_t next = 1;
  for (const auto d : order) {
    if (strides[d] != next) return false;
    next *= sizes[d];
  }
  return true;
}

std::vector<std::int64_t> strides_at(const ValueInfo& value, std::int64_t samples) {
  std::vector<std::int64_t> strides;
  strides.reserve(value.strides.size());
  for (const auto& stride : value.strides) strides.push_back(stride.at(samples));
  return strides;
}

at::Tensor with_strides(const at::Tensor& tensor, const std::vector<std::int64_t>& strides) {
  return at::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(tensor);
}

}  // namespace

bool has_strides(const at::Tensor& tensor, c10::IntArrayRef strides) {
  for (std::size_t d = 0; d < strides.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    if (tensor.size(dim) != 1 && tensor.stride(dim) != strides[d]) return false;
  }
  return true;
}

at::Tensor in_captured_layout(at::Tensor tensor, const ValueInfo& value, std::int64_t samples) {
  const auto strides = strides_at(value, samples);
  const bool stays =
      tensor.numel() == 0 || has_strides(tensor, strides) || !leaves_no_gaps(tensor.sizes().vec(), strides);
  return stays ? tensor : with_strides(tensor, strides);
}

at::Tensor in_form(const at::Tensor& tensor, const TensorForm& form) {
  if (form.strides.empty()) return tensor.contiguous();
  return has_strides(tensor, form.strides) ? tensor : with_strides(tensor, form.strides);
}

TensorForm form_of(const ValueInfo& value, std::int64_t samples) {
  TensorForm form{sizes_at(value, samples), value.dtype};
  auto strides = strides_at(value, samples);
  const bool is_plain = c10::multiply_integers(form.sizes) == 0 ||
                        at::IntArrayRef(strides) == at::IntArrayRef(c10::contiguous_strides(form.sizes));
  if (!is_plain && leaves_no_gaps(form.sizes, strides)) form.strides = std::move(strides);
  return form;
}

at::Tensor zeros_of(const TensorForm& form, c10::Device device) {
  const auto options = at::TensorOptions().dtype(form.dtype).device(device);
  if (form.strides.empty()) return at::zeros(form.sizes, options);
  return at::empty_strided(form.sizes, form.strides, options).zero_();
}

bool is_channels_last(const ValueInfo& value) {
  if (value.sizes.size() != 4) return false;
  const auto& channels = value.sizes[1];
  return value.strides[1] == SizeExpr{0, 1} && value.strides[3] == channels && !channels.depends_on_batch() &&
         channels.fixed > 1;
}

at::TensorOptions options_of(const ValueInfo& value, c10::Device device) {
  return at::TensorOptions().dtype(value.dtype).device(device);
}

std::vector<std::int64_t> sizes_at(const ValueInfo& value, std::int64_t samples) {
  std::vector<std::int64_t> sizes;
  sizes.reserve(value.sizes.size());
  for (const auto& size : value.sizes) sizes.push_back(size.at(samples));
  return sizes;
}

at::Tensor with_own_version(const at::Tensor& tensor) {
  const auto version = tensor.is_inference() ? c10::VariableVersion() : c10::VariableVersion(0);
  return at::Tensor(
      tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(version, /*allow_tensor_metadata_change=*/true));
}

}  // namespace autopar::ir
