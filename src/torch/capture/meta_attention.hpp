#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace autopar::detail {

/// The form of what scaled_dot_product_attention gives on CPUs, of tensors without data: libtorch's own choice of the
/// kernel there tells how the result lies in memory. Another device's kernels are chosen when they run.
[[nodiscard]] at::Tensor attention_form(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                                        std::optional<double> scale, bool grouped);

}  // namespace autopar::detail
