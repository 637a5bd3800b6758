#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar::ir {

/// Sizes of a value on `samples` samples.
[[nodiscard]] std::vector<std::int64_t> sizes_at(const ValueInfo& value, std::int64_t samples);

/// Whether the value has four dims, more than one channel, and channels-last strides.
[[nodiscard]] bool is_channels_last(const ValueInfo& value);

/// Options with the element type of a value, on a device.
[[nodiscard]] at::TensorOptions options_of(const ValueInfo& value, c10::Device device);

/// Whether the elements lie at these strides. The strides of dims with one element do not matter. @pre one stride per
/// dim
[[nodiscard]] bool has_strides(const at::Tensor& tensor, c10::IntArrayRef strides);

/// The tensor with the value's strides in the captured program, copied if necessary. Later operators may depend on
/// these strides: a `view`, or a `contiguous` that copied nothing. Overlapping tensors (expanded) stay as they are.
[[nodiscard]] at::Tensor in_captured_layout(at::Tensor tensor, const ValueInfo& value, std::int64_t samples);

struct TensorForm {
  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype;
  std::vector<std::int64_t> strides{};  ///< strides without gaps (channels-last, transposed); empty: contiguous
};

/// The form of a value on `samples` samples, with its strides in the captured program if they leave no gaps.
[[nodiscard]] TensorForm form_of(const ValueInfo& value, std::int64_t samples);

/// The tensor, copied if its layout differs. @pre it has the sizes and type of the form
[[nodiscard]] at::Tensor in_form(const at::Tensor& tensor, const TensorForm& form);

/// Zeros of a form.
[[nodiscard]] at::Tensor zeros_of(const TensorForm& form, c10::Device device);

/// A separate tensor on the same memory: not a view for autograd, without an autograd graph, its version counted from
/// 0.
[[nodiscard]] at::Tensor with_own_version(const at::Tensor& tensor);

}  // namespace autopar::ir
