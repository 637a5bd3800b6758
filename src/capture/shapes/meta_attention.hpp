#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace autopar::shapes {

/// The form of the result of scaled_dot_product_attention on CPUs, from tensors without data. The CPU kernel that
/// libtorch chooses decides the memory layout of the result.
[[nodiscard]] at::Tensor attention_form(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                                        std::optional<double> scale, bool grouped);

/// The form of a result whose memory layout on CUDA differs from CPUs, from arguments without data; none for other
/// results. This applies to fused attention, whose result has the query's layout on CUDA, with or without dropout. CPUs
/// compute it by products in another layout, so the program swaps heads and tokens once more after it. The kernel is
/// chosen later; another layout costs a copy.
[[nodiscard]] std::optional<at::Tensor> form_on_cuda(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

}  // namespace autopar::shapes
