#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace autopar::detail {

/// The form of what scaled_dot_product_attention gives on CPUs, of tensors without data: libtorch's own choice of the
/// kernel there tells how the result lies in memory.
[[nodiscard]] at::Tensor attention_form(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                                        std::optional<double> scale, bool grouped);

/// What its fused kernels give on CUDA: as the query lies, dropout or not, where CPUs make the products and lay them
/// out anew, so that heads and tokens are exchanged once more behind it. None if they do not take the operands. Which
/// kernel runs is chosen then; another layout costs a copy.
[[nodiscard]] std::optional<at::Tensor> attention_form_on_cuda(const at::Tensor& query, const at::Tensor& key,
                                                               const at::Tensor& value,
                                                               const std::optional<at::Tensor>& mask);

}  // namespace autopar::detail
