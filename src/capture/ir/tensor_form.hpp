#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar {

/// Sizes of a value on `samples` samples.
[[nodiscard]] std::vector<std::int64_t> sizes_at(const ValueInfo& value, std::int64_t samples);

/// Whether the value has four dims and channels-last strides, of more than one channel.
[[nodiscard]] bool is_channels_last(const ValueInfo& value);

/// Element type of a value, on a device.
[[nodiscard]] at::TensorOptions options_of(const ValueInfo& value, c10::Device device);

/// Whether its elements lie where these strides say: those of dims of one element, which are never walked, may be
/// others. @pre as many as dims
[[nodiscard]] bool has_strides(const at::Tensor& tensor, c10::IntArrayRef strides);

/// The tensor with the strides that the value had in the captured program, copied if need be: operators after it may
/// depend on them (a `view`, or a `contiguous` that was none). Overlapping ones (expanded) stay as they are.
[[nodiscard]] at::Tensor in_captured_layout(at::Tensor tensor, const ValueInfo& value, std::int64_t samples);

struct TensorForm {
  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype;
  std::vector<std::int64_t> strides{};  ///< of memory without gaps (channels-last, transposed); empty: contiguous
};

/// The form of a value on `samples` samples, with its strides in the captured program where these leave no gaps.
[[nodiscard]] TensorForm form_of(const ValueInfo& value, std::int64_t samples);

/// The tensor, copied if it is laid out otherwise. @pre its sizes and type are those of the form
[[nodiscard]] at::Tensor in_form(const at::Tensor& tensor, const TensorForm& form);

/// Zeros of a form.
[[nodiscard]] at::Tensor zeros_of(const TensorForm& form, c10::Device device);

/// The same memory as a tensor of its own: no view to autograd, without history, with a version that counts from 0.
[[nodiscard]] at::Tensor with_own_version(const at::Tensor& tensor);

}  // namespace autopar
