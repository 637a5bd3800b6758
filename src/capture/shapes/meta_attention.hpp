#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace autopar::detail {

/// The form of what scaled_dot_product_attention gives on CPUs, of tensors without data: libtorch's own choice of the
/// kernel there tells how the result lies in memory.
[[nodiscard]] at::Tensor attention_form(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                                        std::optional<double> scale, bool grouped);

/// The form of a result that lies in memory otherwise on CUDA than on CPUs, of arguments without data; none for all
/// others. Fused attention: as the query lies, dropout or not, where CPUs make the products and lay them out anew, so
/// that heads and tokens are exchanged once more behind it. Which kernel runs is chosen later; another layout costs a
/// copy.
[[nodiscard]] std::optional<at::Tensor> form_on_cuda(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

}  // namespace autopar::detail
